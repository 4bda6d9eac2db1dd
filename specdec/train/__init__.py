"""Training what drafts: data that the target itself wrote, heads and small models that learn from it, and their formats."""
