"""Addresses, TLS and secrets of connections."""
