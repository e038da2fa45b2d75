"""Graphs compiled by OpenVINO, and the isolated child processes that make them.

This room knows neither embeddings nor language models: the engines above bring the program that
builds a graph, and what its inputs mean.
"""
