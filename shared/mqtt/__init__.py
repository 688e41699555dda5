"""The MQTT connection of a node.

Start with `bus`, the contract, and `paho_bus`, its implementation.
"""
