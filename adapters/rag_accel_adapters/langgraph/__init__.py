"""What compiled LangGraph graphs are made of."""
