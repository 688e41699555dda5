"""The OpenVINO engine and the graph rewriting that makes models faster on it.

Start with `engine`.
"""
