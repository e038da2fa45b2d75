"""Exact search led by 8-bit codes."""
