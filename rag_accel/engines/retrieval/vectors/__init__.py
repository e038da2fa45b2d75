"""Vectors without documents: flat or in clusters, and exact searches for the nearest."""
