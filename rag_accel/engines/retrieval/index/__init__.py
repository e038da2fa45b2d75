"""A document index: its contents, their changes, and its file."""
