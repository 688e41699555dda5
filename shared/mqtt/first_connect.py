"""The first connection to a broker: retries until the broker accepts, and explains a failure."""

import queue
import ssl
import time
from collections.abc import Callable

from paho.mqtt.enums import MQTTProtocolVersion

from shared.errors import SkylaneError, reason_of
from shared.mqtt.paho_client import MonitoredClient
from shared.network.address import Address, Certificates
from shared.network.tls import describe_tls_error, probe_rejection, speaks_tls

_LONGEST_WAIT_S = 1.0


class BrokerUnreachableError(SkylaneError):
    """No broker answered in time."""


class BrokerRefusedError(SkylaneError):
    """A broker answered and refused the connection."""


class ConnectReply:
    """The result of one connection attempt; the network thread sets it and the connecting thread waits for it."""

    def __init__(self) -> None:
        self._results: queue.SimpleQueue[tuple[int, str] | None] = queue.SimpleQueue()
        self._is_set = False

    def accepted(self) -> None:
        """Records that the broker accepted the connection."""
        self._set(None)

    def refused(self, code: int, text: str) -> None:
        """Records that the broker refused with an MQTT 5 reason code."""
        self._set((code, text))

    def disconnected(self) -> None:
        """Records that the broker closed the connection without a reply, as one without MQTT 5 may do.

        Has no effect after a reply.
        """
        self._set((_UNSPECIFIED, _CLOSED))

    def wait(self, timeout_s: float) -> tuple[int, str] | None:
        """Returns None if the broker accepted, else the reason code (0: a network error) and its text."""
        try:
            return self._results.get(timeout=timeout_s)
        except queue.Empty:
            return (_NO_REPLY, "it accepted the TCP connection but sent no reply")

    def _set(self, result: tuple[int, str] | None) -> None:
        if not self._is_set:  # Needs no lock: only the network thread sets results.
            self._is_set = True
            self._results.put(result)


class FirstConnect:
    """Tries a broker until it accepts; speaks MQTT 5, or 3.1.1 if the broker does not know MQTT 5."""

    def __init__(
        self,
        address: Address,
        client_id: str,
        *,
        create_client: Callable[[MQTTProtocolVersion], MonitoredClient],
        connack_timeout_s: float,
        create_context: Callable[[], ssl.SSLContext] | None = None,
        certificates: Certificates | None = None,
        on_waiting: Callable[[str], None] | None = None,
    ) -> None:
        """`create_client` returns an unconnected client, and `create_context` the TLS context (None: no TLS).

        `certificates` are named in error messages. `on_waiting` is called with the reason after a failed attempt.
        """
        self._address = address
        self._client_id = client_id
        self._create_client = create_client
        self._connack_timeout_s = connack_timeout_s
        self._create_context = create_context
        self._certificates = certificates
        self._on_waiting = on_waiting or (lambda _: None)

    def within(self, timeout_s: float) -> MonitoredClient:
        """Connects and returns the client, whose network thread runs and whose user data is a `ConnectReply`.

        Raises:
            BrokerUnreachableError: no broker answered in time.
            BrokerRefusedError: the broker refused, or one side does not trust the other's certificate.
        """
        deadline = time.monotonic() + timeout_s
        protocol = MQTTProtocolVersion.MQTTv5
        tries = 0
        has_replied = lacks_mqtt5 = False
        while True:
            client = self._create_client(protocol)
            failure = self._try(client, deadline)
            if failure is None and protocol is MQTTProtocolVersion.MQTTv311 and not lacks_mqtt5:
                # The broker may only have been slow. MQTT 5 is tried again, as 3.1.1 has no shared subscriptions.
                client.stop()
                has_replied, protocol = True, MQTTProtocolVersion.MQTTv5
                continue
            if failure is None:
                return client
            code, text = failure
            if protocol is MQTTProtocolVersion.MQTTv5 and code in _NOT_MQTT5:
                lacks_mqtt5 = has_replied or code != _NO_REPLY
                protocol = MQTTProtocolVersion.MQTTv311
                continue
            protocol = MQTTProtocolVersion.MQTTv5  # The broker may have been starting up.
            if code in _REFUSALS:
                raise BrokerRefusedError(f"broker {self._address} refuses {self._client_id}: {text}: {_REFUSALS[code]}")
            if time.monotonic() >= deadline:
                raise BrokerUnreachableError(
                    f"no broker at {self._address} after {timeout_s:g} s ({text}): start one with 'skylane broker' "
                    "or give its address with --broker"
                )
            tries += 1
            self._on_waiting(f"no broker at {self._address} yet ({text}); trying again")
            time.sleep(min(0.1 * 2**tries, _LONGEST_WAIT_S, max(0.0, deadline - time.monotonic())))

    def _try(self, client: MonitoredClient, deadline: float) -> tuple[int, str] | None:
        """Connects once; returns what `ConnectReply.wait` returns."""
        reply = ConnectReply()
        client.user_data_set(reply)
        try:
            client.open(self._address.host, self._address.port)
        except (OSError, ValueError) as error:
            client.stop()
            if self._create_context and isinstance(error, (ssl.SSLEOFError, ConnectionResetError)):
                return (0, "it closed the connection during the TLS handshake: if that port has no TLS, write mqtt://")
            if isinstance(error, ssl.SSLError):
                self._refuse(describe_tls_error(error, self._address, self._certificates), error)
            return (0, reason_of(error))
        client.loop_start()
        failure = reply.wait(min(self._connack_timeout_s, max(0.5, deadline - time.monotonic())))
        if failure is None:
            return None
        client.stop()
        if failure != (_UNSPECIFIED, _CLOSED):
            return failure
        if self._create_context:
            self._refuse(probe_rejection(self._address, self._create_context, self._certificates))
        elif speaks_tls(self._address):
            self._refuse(f"broker {self._address} speaks TLS on that port: write mqtts://")
        return failure

    def _refuse(self, reason: str | None, cause: BaseException | None = None) -> None:
        if reason is not None:
            raise BrokerRefusedError(reason) from cause


_CLOSED = "it closed the connection without a reply"
_NO_REPLY = -1
_UNSPECIFIED = 0x80
_NOT_MQTT5 = (_NO_REPLY, _UNSPECIFIED, 0x81, 0x82, 0x84)  # Malformed, protocol error, unsupported version.
_REFUSALS = {
    0x85: "choose another --vehicle or --worker name",
    0x86: "check the user name and SKYLANE_BROKER_PASSWORD",
    0x87: "check the user (mqtt://user@host) and SKYLANE_BROKER_PASSWORD, or the certificate",
    0x8A: "this client is banned; ask the operator of the broker",
    0x8C: "the broker requires another authentication method",
}
