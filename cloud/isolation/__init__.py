"""Engines in processes of their own, so that a model that hangs, dies or eats all memory takes nothing along."""
