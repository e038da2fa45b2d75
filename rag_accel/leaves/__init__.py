"""Single calls of an intercepted program: how they are made, and where they run."""
