"""Weights of others: the authors' checkpoints, and plain GPT-2 or timm ViT weights."""
