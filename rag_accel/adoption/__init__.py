"""The local object behind a framework's component, its owned engine, and when that one computes."""
