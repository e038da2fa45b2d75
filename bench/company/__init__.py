"""Programs as a company runs them: edits and failures beside questions."""
