"""Training what drafts: data that the target itself wrote, and heads and small models that learn from it."""
