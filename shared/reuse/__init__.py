"""Frames that need not be sent: the difference detector, the cascade's rule and the file with their tuned numbers.

Start with `gate`, which reuses results, and `tuning`, whose cascade decides whether a local model's answer is good enough. The
algorithms are pure; vehicles use them for frames, and `skylane model tune-gate` uses them to find thresholds.
"""
