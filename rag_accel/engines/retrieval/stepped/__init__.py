"""Search in steps that end in time."""
