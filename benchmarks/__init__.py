"""Speed and memory, as ratios of things measured side by side in one run."""

WITHOUT_OBJECTIVES = {"distance_weight": 0.0, "ood_weight": 0.0}
"""Options of SeqPE that leave its objectives out of training."""
