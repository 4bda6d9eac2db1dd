"""The acceptance harness: how well proposers fit prompts, and what they gain over plain decoding of the same engine."""
