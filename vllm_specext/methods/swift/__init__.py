"""SWIFT (arXiv 2410.06916): the target drafts for itself by skipping sub-layers, and learns while serving which to
skip."""
