"""Inspects a third-party model file and writes the manifest that is needed to serve it.

Start with `inspection`.
"""
