"""The forward of a model over packed rows: loading, attention, and the pool of keys and values."""
