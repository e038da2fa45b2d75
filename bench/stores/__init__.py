"""Stores on servers, with the servers: run by the python of ``make test-in ENV=stores``."""
