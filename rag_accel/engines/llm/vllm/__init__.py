"""A language model that vLLM runs for this process, as an owned engine."""
