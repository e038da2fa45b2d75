"""Knowledge graphs: entities are found, expanded hop by hop, and their paths pruned."""
