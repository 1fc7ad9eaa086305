"""A small language model with the target's tokenizer, drafting trees: vLLM's `draft_model`, which drafts chains."""
