"""Dependency trees of relation paths: prompts, masks and positions as numbers, without tensors.

DepCache (SIGMOD 2025), sections 3.1 and 5. No model, no cache and no engine is known here.
"""
