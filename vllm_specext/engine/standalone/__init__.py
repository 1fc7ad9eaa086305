"""A drafter that is a language model of its own: its configuration, its paged cache and its passes."""
