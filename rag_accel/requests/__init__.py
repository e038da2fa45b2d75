"""One request of a RAGraph, from its check to its result."""
