"""Continuous batching: sequences, their prefixes, and the rows of the next forward."""
