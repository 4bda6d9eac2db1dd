"""Model families as a table, one decoder for all of them, and the readers of their checkpoints."""
