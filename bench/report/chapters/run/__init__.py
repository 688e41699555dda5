"""Chapters about a single run."""
