"""Compare designs with an emulated device, and parts by themselves; no user runs these."""
