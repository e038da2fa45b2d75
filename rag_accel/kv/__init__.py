"""Attention states of texts: spans in prompts, keys, and stores in memory and in folders."""
