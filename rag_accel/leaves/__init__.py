"""Single calls of an intercepted program: who makes them, and where they run."""
