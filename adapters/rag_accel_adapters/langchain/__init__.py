"""The parts of LangChain and LangGraph objects."""
