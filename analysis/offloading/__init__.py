"""Compares local with remote inference, and computes the link and the price at which offloading pays.

Start with `break_even`.
"""
