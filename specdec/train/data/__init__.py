"""Training data: the target answers prompts, and its answers are kept as token shards, with its states where wanted."""
