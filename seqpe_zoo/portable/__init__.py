"""Code that travels with published checkpoints: flat, and free of the rest of the package."""
