"""The models of a worker: loading, swapping, and the choice of the engine.

Start with `loader`, which opens a model of `shared.models.repository`.
"""
