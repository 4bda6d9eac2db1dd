"""Whole engines against their own plain decoding: what proposers gain, and that nothing is lost."""
