"""Chapters that compare runs, and estimates of cost and offloading."""
