"""Embeddings, retrievers, stores and models to put into a chain."""
