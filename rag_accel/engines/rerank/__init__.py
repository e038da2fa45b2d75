"""The reranking engine and the scorers it uses."""
