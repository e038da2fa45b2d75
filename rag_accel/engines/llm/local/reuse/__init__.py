"""Reuse of the KV cache of retrieved chunks at any position of a prompt."""
