"""Whole programs in which every mechanism takes part, all of it on and all of it off."""
