"""What vLLM's scheduler decides about drafts."""
