"""Where the time of requests went, read off the trace."""
