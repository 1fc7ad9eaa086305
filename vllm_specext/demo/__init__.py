"""The bundled models, the text they were trained on, and the demonstration that serves them."""
