"""Search by vector and words."""
