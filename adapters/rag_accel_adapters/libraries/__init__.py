"""Foreign libraries under several frameworks: their objects, and the versions that are known."""
