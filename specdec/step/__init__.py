"""What one step looks like on the device: the ragged batch and the paged KV cache."""
