"""What our methods change in vLLM, and its side of drafting and verification: configuration, requests, metrics, hooks,
scheduler."""
