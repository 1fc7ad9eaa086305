"""Training data: conversations in every common form become rows of token ids with exact loss masks."""
