"""Programs that retrieve from a knowledge graph: the frameworks' own, and ours beside them."""
