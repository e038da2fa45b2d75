"""Hold the opponents that a user could pick instead of us, each at its best."""
