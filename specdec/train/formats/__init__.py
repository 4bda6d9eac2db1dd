"""The layouts that other libraries have for draft heads: written, read, and turned into each other."""
