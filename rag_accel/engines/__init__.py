"""Execute primitives: the engines this package owns. Nothing is imported before it is used."""
