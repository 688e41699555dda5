"""Settings of a broker connection."""

from dataclasses import dataclass

from shared.mqtt.inflight import MAX_INFLIGHT, MAX_INFLIGHT_BYTES

CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 15


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """Timeouts and limits of one connection."""

    connect_timeout_s: float = CONNECT_TIMEOUT_S  # Time for the first connection, all attempts together.
    connack_timeout_s: float = 3.0  # Time for the reply to one CONNECT; a broker without MQTT 5 may never reply.
    reconnect_timeout_s: float = 5.0  # Time for the broker to accept a later connection.
    link_timeout_s: float = (
        KEEPALIVE_S  # If the broker is silent this long while it owes an acknowledgement, reconnect.
    )
    keepalive_s: int = KEEPALIVE_S
    offline_notice_s: float = 10.0  # Time without a connection before the node is notified.
    callback_timeout_s: float = KEEPALIVE_S  # A callback that blocks the network thread longer is reported as a fault.
    min_bandwidth_mbps: float | None = (
        None  # Slowest link to expect; limits payloads to what it carries within a keepalive.
    )
    max_inflight: int = MAX_INFLIGHT
    max_inflight_bytes: int = MAX_INFLIGHT_BYTES
