"""DFlash's training, with the drafter of `methods/block` in plain torch; vLLM's own class serves it."""
