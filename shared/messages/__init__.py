"""The messages on the wire (version 1) and their topics, validated when they are read.

Start with `frame` and `topics`.
"""
