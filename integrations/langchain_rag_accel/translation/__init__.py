"""Chains run as graphs of their steps."""
