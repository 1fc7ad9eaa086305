"""Clients that draft: what crosses the link, and how fast answers come over links of several kinds."""
