"""Chapters that compare runs, cells of a study, or machines."""
