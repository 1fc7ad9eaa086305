"""MoA's training."""
