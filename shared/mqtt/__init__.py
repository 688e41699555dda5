"""The MQTT connection of a node.

Start with `bus`, the contract, and `paho_bus`, its implementation. `paho_client` reconnects; docs/guides/links.md describes
what happens to messages in the meantime.
"""
