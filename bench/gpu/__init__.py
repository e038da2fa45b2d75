"""Measurements on one device of torch, within a time and with random weights alone."""
