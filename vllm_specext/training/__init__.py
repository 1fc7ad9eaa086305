"""Training drafters: target features, the methods' losses and masks, and measuring acceptance. Plain torch, no vLLM."""
