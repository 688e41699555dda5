"""Conversion of models from one format into another."""
