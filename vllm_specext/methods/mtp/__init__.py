"""Multi-token prediction modules in the target's own checkpoint, drafting trees: vLLM's `mtp`, which drafts chains."""
