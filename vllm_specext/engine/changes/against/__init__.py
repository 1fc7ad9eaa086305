"""Whether our adapter fits a vLLM that is not installed: its source is read, and never imported or run."""
