"""Multi-token prediction modules of targets, drafting trees: vLLM's `mtp`, which drafts chains."""
