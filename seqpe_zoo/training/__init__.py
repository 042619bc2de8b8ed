"""Training and fine-tuning on `transformers.Trainer`: configs, parameter groups, checkpoints, the demo."""
