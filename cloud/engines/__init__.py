"""What runs a model: one file a format."""
