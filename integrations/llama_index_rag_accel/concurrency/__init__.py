"""LlamaIndex methods that block a loop or wait one by one, made concurrent."""
