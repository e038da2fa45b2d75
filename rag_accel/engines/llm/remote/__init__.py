"""OpenAI-compatible servers as an engine."""
