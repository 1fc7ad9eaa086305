"""The client on its own machine: drafter, tokenizer, connection, and whoever asks there."""
