"""Turn texts of many requests into vectors in shared batches."""
