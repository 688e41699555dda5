"""The embedded broker for machines without Mosquitto: amqtt, which speaks only MQTT 3.1.1.

`ops.broker.broker` runs this file as a program, `embedded.py HOST PORT`, and stops it with SIGTERM.
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
_FIXED_HEADER_BYTES = 5
_NAME_AND_LEVEL_BYTES = 7


class Broker311(Broker):  # type: ignore[misc]  # amqtt has no types.
    """amqtt's broker, which closes connections that do not start with an MQTT 3.1.1 CONNECT.

    amqtt misreads an MQTT 5 CONNECT that has a last will and waits for more bytes, so a node would run into two
    timeouts before it falls back to MQTT 3.1.1.
    """

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        """See amqtt's Broker."""
        peekable = PeekableReader(reader)
        try:
            if await peekable.protocol_level() == _MQTT_311:
                await self.external_connected(peekable, StreamWriterAdapter(writer), listener_name)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The client closed the connection first.
        finally:
            writer.close()


class PeekableReader(StreamReaderAdapter):  # type: ignore[misc]  # amqtt has no types.
    """A connection whose first packet can be inspected before amqtt reads it."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self._peeked = b""

    async def protocol_level(self) -> int:
        """Returns the protocol level of a CONNECT packet; 0 for any other packet.

        The level follows the remaining length, of 1 to 4 bytes, and the protocol name "MQTT".
        """
        self._peeked = await super().read(2)
        if self._peeked[0] != _CONNECT:
            return 0
        while self._peeked[-1] & 0x80 and len(self._peeked) < _FIXED_HEADER_BYTES:
            self._peeked += await super().read(1)
        self._peeked += await super().read(_NAME_AND_LEVEL_BYTES)
        return self._peeked[-1]

    async def read(self, n: int) -> bytes:
        """See ReaderAdapter."""
        peeked, self._peeked = self._peeked[:n], self._peeked[n:]
        more: bytes = await super().read(n - len(peeked)) if len(peeked) < n else b""
        return peeked + more


async def serve(host: str, port: int) -> None:
    """Serves without authentication on `host`:`port` until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    config = BrokerConfig(
        listeners={"default": ListenerConfig(bind=f"{host}:{port}")},
        plugins={"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    )
    broker = Broker311(config)
    await broker.start()
    await stopped.wait()
    await broker.shutdown()


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # amqtt logs every packet and every disconnect.
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
