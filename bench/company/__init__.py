"""Programs in company: many clients at once on members that cannot carry them all."""
