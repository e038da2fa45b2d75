"""Searches over clusters in steps of bounded time."""
