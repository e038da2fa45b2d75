"""Embedding on several devices: loads and systems in virtual time, and the group in real time."""
