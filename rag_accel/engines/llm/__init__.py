"""Language models as engines: remote servers and local models."""
