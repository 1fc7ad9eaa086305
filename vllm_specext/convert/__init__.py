"""Drafters' checkpoints from one format into another: tensors by name, shapes checked, nothing in a file executed."""
