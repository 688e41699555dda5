"""What both ends must agree on; imports neither."""
