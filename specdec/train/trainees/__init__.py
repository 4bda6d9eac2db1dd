"""What can be trained: each a module of its own behind the protocol of `base`."""
