"""The embedded broker: amqtt in a process of its own, for machines without Mosquitto. MQTT 3.1.1 only.

Run as a program, `embedded_broker.py HOST PORT`, until SIGTERM; `shared.broker.broker` starts and ends it.
"""

import asyncio
import logging
import signal
import sys

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker
from amqtt.contexts import BrokerConfig, ListenerConfig

_MQTT_311 = 4
_CONNECT = 0x10
_HEAD_BYTES = 5
_NAME_AND_LEVEL_BYTES = 7


class Broker311(Broker):  # type: ignore[misc]  # amqtt has no types.
    """amqtt, but that it hangs up on MQTT 5, and on whatever is no MQTT.

    By itself it misreads the first packet of a node, which has a last will, waits for the rest of it and says nothing: the
    node would wait for seconds, twice, before it is sure that it has to speak 3.1.1.
    """

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        """See amqtt's Broker."""
        again = Rereadable(reader)
        try:
            if await again.protocol_level() == _MQTT_311:
                await self.external_connected(again, StreamWriterAdapter(writer), listener_name)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # Whoever only knocked has nothing to be told.
        finally:
            writer.close()


class Rereadable(StreamReaderAdapter):  # type: ignore[misc]  # The same.
    """A connection whose first bytes are looked at before amqtt reads them."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self._seen = b""

    async def protocol_level(self) -> int:
        """What the CONNECT says; 0 for any other packet.

        It stands behind the packet's length, of 1 to 4 bytes, and a name of 4.
        """
        self._seen = await super().read(2)
        if self._seen[0] != _CONNECT:
            return 0
        while self._seen[-1] & 0x80 and len(self._seen) < _HEAD_BYTES:
            self._seen += await super().read(1)
        self._seen += await super().read(_NAME_AND_LEVEL_BYTES)
        return self._seen[-1]

    async def read(self, n: int) -> bytes:
        """See ReaderAdapter."""
        seen, self._seen = self._seen[:n], self._seen[n:]
        more: bytes = await super().read(n - len(seen)) if len(seen) < n else b""
        return seen + more


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
    broker = Broker311(config)
    await broker.start()
    await ended.wait()
    await broker.shutdown()


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # amqtt logs a line a packet, and warns of every client that leaves.
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
