"""Models on disk and in memory: repository, manifest, loading, swapping, and the choice of the engine.

Start with `repository`, which finds a model, and `loader`, which opens it.
"""
