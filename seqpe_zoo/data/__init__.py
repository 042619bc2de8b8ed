"""Data of the runs: small sets that every installation has, and readers of WikiText, ImageNet and SQuAD."""
