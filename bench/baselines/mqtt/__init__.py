"""Reproduction of the first system's MQTT path: its vehicle, its cloud node, and its image and mask encoding."""
