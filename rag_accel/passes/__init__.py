"""Rewrite graphs: each pass is one file with one function from graph to graph."""
