"""Hold what the suite ``advanced_rag`` runs: its workload, its arms and what bounds them."""
