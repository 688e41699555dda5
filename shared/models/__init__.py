"""Models of the repository: manifest, files and their hashes.

Start with `repository`, which finds a model. `shared.inference.model` makes a `Model` of it.
"""
