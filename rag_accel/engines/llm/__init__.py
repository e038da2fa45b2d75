"""Language models as engines: remote servers, an emulated device, extractive answers."""
