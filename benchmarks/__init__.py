"""Speed as ratios of things measured side by side in one run, and what SeqPE costs by counting."""
