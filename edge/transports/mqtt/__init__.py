"""The MQTT transport, and clock probes over MQTT."""
