"""Searches in steps that end in time."""
