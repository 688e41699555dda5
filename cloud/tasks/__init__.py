"""What becomes of a model's outputs: one file a task."""
