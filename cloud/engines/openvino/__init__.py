"""The OpenVINO engine, with graph rewriting that makes models faster on it.

Start with `engine`.
"""
