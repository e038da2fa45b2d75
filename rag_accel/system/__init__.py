"""The machine as the core sees it: processor, locks, forks and files."""
