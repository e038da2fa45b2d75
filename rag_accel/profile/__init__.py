"""Profiles of requests, computed from the trace."""
