"""One embedder on several devices: a device group is one engine with a worker for each member."""
