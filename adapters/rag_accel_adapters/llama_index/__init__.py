"""What is known of LlamaIndex's objects: their insides are looked at here and nowhere else."""
