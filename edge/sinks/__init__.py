"""What becomes of masks at the vehicle: one file a kind of output."""
