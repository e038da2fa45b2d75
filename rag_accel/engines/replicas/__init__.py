"""Several engines that do the same, as one: in other processes, or each on a thread here."""
