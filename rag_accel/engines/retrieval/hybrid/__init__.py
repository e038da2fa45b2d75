"""Searches by vector and words."""
