"""Models of the repository: manifest, files and their hashes, warm-up and results of a loaded model.

Start with `repository`, which finds a model; `opening` makes a `Model` of it.
"""
