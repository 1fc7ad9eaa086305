"""The engine's side of clients that draft: their trees come in with requests, and what their drafters must know of the
text goes out to them."""
