"""How right the outputs of a vehicle are at each tick: presenters compared on recorded drives.

Start with `freshness_bench`.
"""
