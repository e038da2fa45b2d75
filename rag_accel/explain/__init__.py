"""Explain plans to people: what is understood, what it is lowered to, what drives it."""
