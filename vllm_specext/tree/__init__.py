"""Drafts as trees, without any engine: torch and numpy only. A chain is the tree of one path."""
