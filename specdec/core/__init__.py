"""The torch-free heart: sequences, their blocks, the token-budget scheduler, and where a sample stops."""
