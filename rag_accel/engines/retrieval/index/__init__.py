"""What an index holds, how it is changed, and how it is kept in a file."""
