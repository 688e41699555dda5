"""The embedded broker: amqtt in a process of its own, for machines without Mosquitto. MQTT 3.1.1 only.

Run as a program, `embedded_broker.py HOST PORT`, until SIGTERM; `shared.broker` starts and ends it.
"""

import asyncio
import logging
import signal
import sys

from amqtt.broker import Broker
from amqtt.contexts import BrokerConfig, ListenerConfig


async def serve(host: str, port: int) -> None:
    """Serve anyone on `host`:`port` until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    config = BrokerConfig(
        listeners={"default": ListenerConfig(bind=f"{host}:{port}")},
        plugins={"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    )
    broker = Broker(config)
    await broker.start()
    await ended.wait()
    await broker.shutdown()


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # amqtt logs a line a packet, and warns of every client that leaves.
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
