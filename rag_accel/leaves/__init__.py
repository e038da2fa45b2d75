"""Leaf calls of intercepted programs, submitted to the scheduler."""
