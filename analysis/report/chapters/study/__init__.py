"""Chapters about the cells of a study."""
