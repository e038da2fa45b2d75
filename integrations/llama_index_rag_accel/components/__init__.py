"""Embeddings, vector stores and retrievers to put into a LlamaIndex program."""
