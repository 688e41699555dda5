"""How long a connection to a broker waits for what."""

from dataclasses import dataclass

KEEPALIVE_S = 15


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """The times of one connection."""

    keepalive_s: int = KEEPALIVE_S  # Between two signs of life.
    answer_s: float = 3.0  # For the answer to the first connect: a broker that knows no MQTT 5 may say nothing at all.
    accept_s: float = 5.0  # For a connection that was made again to be accepted.
    away_s: float = 10.0  # Without a connection, before the node is told.
    callback_s: float = KEEPALIVE_S  # How long a callback may keep the network thread.
