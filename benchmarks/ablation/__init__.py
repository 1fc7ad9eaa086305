"""Small drafters for the bundled target that differ by one thing, and what that makes: see ``__main__.py``."""
