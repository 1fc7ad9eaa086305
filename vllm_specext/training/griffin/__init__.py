"""GRIFFIN's training."""
