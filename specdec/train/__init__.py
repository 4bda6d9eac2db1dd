"""Training what drafts: data that the target itself wrote, what learns from it, and the formats of what has learned."""
