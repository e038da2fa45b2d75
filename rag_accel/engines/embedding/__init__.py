"""Texts of many requests, turned into vectors in shared batches."""
