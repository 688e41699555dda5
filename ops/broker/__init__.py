"""Runs a broker on this machine: Mosquitto, or the embedded one; and makes the certificates of a secured broker.

Start with `broker`.
"""
