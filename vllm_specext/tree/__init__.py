"""Drafts as trees, without any engine: torch only. A chain is the tree of one path."""
