"""The insides of LlamaIndex's objects, which no other room looks at."""
