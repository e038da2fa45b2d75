"""Answers picked from the passages of a prompt, without a model."""
