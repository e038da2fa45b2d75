"""What a user could pick instead of ours: opponents of the suites, each in its best setting."""
