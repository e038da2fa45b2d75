"""Reuse of retrieved texts' attention state: how early it answers, and how far from plain it is."""
