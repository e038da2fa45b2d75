"""Engines in other processes: of this machine, or processes of a Ray cluster."""
