"""Offline prefill: a folder of chunk KV caches, computed before any request."""
