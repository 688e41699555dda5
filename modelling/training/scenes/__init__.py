"""Training of the weather classifier and the object detector."""
