"""A server with drafts under minutes of mixed and hostile load: see ``__main__.py``."""
