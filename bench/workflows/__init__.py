"""Eight workflows of two papers as plain programs of three frameworks, and opponents of each."""
