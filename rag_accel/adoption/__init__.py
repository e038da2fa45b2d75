"""Owned engines for the local objects behind frameworks' components."""
