"""Measure what each pass and each mechanism for speed is worth: on against off, all else equal.

A module is a group of mechanisms and the work they are measured on; ``bench.suites.ablation`` runs
them all.
"""
