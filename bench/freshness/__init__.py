"""The accuracy of a vehicle's outputs at each tick: presenters compared on recorded drives.

Start with `freshness_bench`.
"""
