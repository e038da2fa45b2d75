"""Measure what embeds and what reranks texts of many callers."""
