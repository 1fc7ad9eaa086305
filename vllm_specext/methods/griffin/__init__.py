"""GRIFFIN (arXiv 2502.11018): a one-layer drafter with token-guided fusion and two output features."""
