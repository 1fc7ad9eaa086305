"""The drafting methods, one folder each."""
