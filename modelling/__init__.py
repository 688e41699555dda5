"""Architectures, training, inspection, conversion and evaluation of models."""
