"""Whole scenes of the synthetic drive: what the weather's classifier and the objects' detector learn from."""
