"""An emulated link between vehicle and broker with delay, loss and a limited bandwidth.

Start with `link`, which runs one; `arrivals` computes what it would do.
"""
