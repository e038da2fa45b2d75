"""First tokens of vLLM, with and without reuse of retrieved texts."""
