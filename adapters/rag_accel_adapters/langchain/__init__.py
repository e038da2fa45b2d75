"""What LangChain objects are made of."""
