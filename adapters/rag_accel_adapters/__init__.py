"""Foreign objects: what is inside a program, and what an object can be run as."""
