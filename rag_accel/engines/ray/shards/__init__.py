"""Exact search over an index whose shards lie in several actors."""
