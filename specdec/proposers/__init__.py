"""Proposers: what guesses the next tokens. One contract (`base`), one table, one file per method."""
