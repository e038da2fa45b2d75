"""Language models as engines: remote servers, local models, and extractive answers."""
