"""Vectors by themselves: flat or in clusters, and the nearest of them, exactly."""
