"""From raw logits to committed tokens: counter-based noise, the sampling pipeline, verification, log probabilities."""
