"""One program in company: slow neighbours, members that return, long answers, edits."""
