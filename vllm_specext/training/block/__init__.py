"""DFlash's and DSpark's training, of the drafters of `methods/block` in plain torch; vLLM's own classes serve them."""
