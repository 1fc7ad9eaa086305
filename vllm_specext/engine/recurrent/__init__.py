"""vLLM's layers with a recurrent state, of which each request has one, and how they verify drafts from it."""
