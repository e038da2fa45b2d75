"""What the core asks of the machine and its files."""
