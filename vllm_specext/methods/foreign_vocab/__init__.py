"""Drafters with a tokenizer of their own: SLEM, TLI and SLRS (arXiv 2502.05202). What target and drafter have in common
is the text, so tokens are read as bytes, and the two vocabularies meet at byte positions, never at spellings.
"""
