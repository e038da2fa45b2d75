"""Several engines that do the same, as one: servers of a model, rerankers, copies of an index."""
