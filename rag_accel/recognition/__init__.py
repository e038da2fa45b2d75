"""Foreign objects: their kinds, and the conditions under which an owned engine does the same."""
