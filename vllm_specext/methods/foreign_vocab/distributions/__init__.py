"""What TLI and SLRS draw their drafts from: distributions over the target's tokens."""
