"""A language model of Hugging Face's on this machine, run by an owned engine."""
