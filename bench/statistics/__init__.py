"""What a sample shows, and how surely."""
