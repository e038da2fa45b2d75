"""A language model that a server of vLLM's runs, started for this process and ended with it."""
