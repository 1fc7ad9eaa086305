"""Tokenizers as tables of bytes and encoders of ordinary tokens, whatever works inside them."""
