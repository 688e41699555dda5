"""Writes trained networks as frozen graphs, SavedModels and Keras files."""
