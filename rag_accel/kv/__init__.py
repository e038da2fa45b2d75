"""Attention state of texts: where they stand in a prompt, what is kept of them, and under what."""
