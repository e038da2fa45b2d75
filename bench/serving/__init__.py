"""Serve a chain by FastAPI in one process, and load it from another."""
