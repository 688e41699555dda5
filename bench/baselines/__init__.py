"""Reproductions of the systems that Skylane follows, and a comparison with them; needs a checkout of the repository.

Start with `cli`, which lists the systems.
"""
