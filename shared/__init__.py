"""Code that both nodes use. It imports neither `edge` nor `cloud`.

Start with `messages` (the wire format) and `runlog` (the latency log).
"""
