"""Writes networks with their weights as frozen graphs, SavedModels and Keras files."""
