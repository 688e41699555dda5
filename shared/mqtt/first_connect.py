"""The first connection to a broker: retries until the broker accepts, and explains a failure."""

import queue
import ssl
import time
from collections.abc import Callable
from contextlib import suppress

from paho.mqtt.enums import MQTTProtocolVersion

from shared.errors import reason_of
from shared.mqtt.paho_client import MonitoredClient
from shared.network.address import Address, Certificates
from shared.network.tls import ConnectionProblemError, ProblemKind, probe_rejection, speaks_tls, tls_problem

_LONGEST_WAIT_S = 1.0


class ConnectReply:
    """The result of one connection attempt; the network thread sets it and the connecting thread waits for it."""

    def __init__(self) -> None:
        self._results: queue.Queue[tuple[int, str] | None] = queue.Queue(maxsize=1)

    def set(self, code: int, text: str = "") -> None:
        """Records an MQTT 5 reason code, 0 if the broker accepted; after the first call, it has no effect."""
        with suppress(queue.Full):
            self._results.put_nowait((code, text) if code else None)

    def disconnected(self) -> None:
        """Records that the broker closed the connection without a reply, as one without MQTT 5 may do."""
        self.set(_UNSPECIFIED, _CLOSED)

    def wait(self, timeout_s: float) -> tuple[int, str] | None:
        """Returns None if the broker accepted, else the reason code (0: a network error) and its text."""
        try:
            return self._results.get(timeout=timeout_s)
        except queue.Empty:
            return (_NO_REPLY, "it accepted the TCP connection but sent no reply")


def connect(
    address: Address,
    client_id: str,
    timeout_s: float,
    *,
    create_client: Callable[[MQTTProtocolVersion], MonitoredClient],
    connack_timeout_s: float,
    create_context: Callable[[], ssl.SSLContext] | None,
    certificates: Certificates | None,
    on_waiting: Callable[[str], None],
) -> MonitoredClient:
    """Tries a broker until it accepts; speaks MQTT 5, or 3.1.1 if the broker does not know MQTT 5.

    Args:
        address: The broker.
        client_id: The name of this client in error messages.
        timeout_s: Time for all attempts.
        create_client: Returns a client that is not connected.
        connack_timeout_s: Time for the reply to one attempt.
        create_context: Returns the TLS context; None: no TLS.
        certificates: The files that error messages name.
        on_waiting: Called with the reason after a failed attempt.

    Returns:
        The client, whose network thread runs and whose user data is a `ConnectReply`.

    Raises:
        ConnectionProblemError: no broker answered in time, the broker refused, or one side does not trust the other's
            certificate.
        CertificateError: the files of this node cannot be used any more.
    """
    deadline = time.monotonic() + timeout_s
    protocol = MQTTProtocolVersion.MQTTv5
    tries = 0
    has_replied = lacks_mqtt5 = False
    while True:
        client = create_client(protocol)
        failure = _try(client, address, deadline, connack_timeout_s, create_context, certificates)
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
        if code in LACKING:
            client.stop()
            cause = f"broker {address} has {LACKING[code] or text}, which Skylane requires"
            remedy = "allow it in its configuration, or give another broker with --broker"
            raise ConnectionProblemError(ProblemKind.LACKS_FEATURE, cause, remedy)
        protocol = MQTTProtocolVersion.MQTTv5  # The broker may have been starting up.
        if code in _REFUSALS:
            cause = f"broker {address} refuses {client_id}: {text}"
            raise ConnectionProblemError(ProblemKind.LOGIN, cause, _REFUSALS[code])
        if time.monotonic() >= deadline:
            kind = ProblemKind.NO_REPLY if code == _NO_REPLY else ProblemKind.UNREACHABLE
            cause = f"no broker at {address} after {timeout_s:g} s ({text})"
            raise ConnectionProblemError(
                kind, cause, "start one with 'skylane broker' or give its address with --broker"
            )
        tries += 1
        on_waiting(f"no broker at {address} yet ({text}); trying again")
        time.sleep(min(0.1 * 2**tries, _LONGEST_WAIT_S, max(0.0, deadline - time.monotonic())))


def _try(  # noqa: PLR0917  Those of `connect`.
    client: MonitoredClient,
    address: Address,
    deadline: float,
    connack_timeout_s: float,
    create_context: Callable[[], ssl.SSLContext] | None,
    certificates: Certificates | None,
) -> tuple[int, str] | None:
    """Connects once; returns what `ConnectReply.wait` returns."""
    reply = ConnectReply()
    client.user_data_set(reply)
    try:
        client.open(address.host, address.port)
    except (OSError, ValueError) as error:
        client.stop()
        if create_context and isinstance(error, (ssl.SSLEOFError, ConnectionResetError)):
            return (0, "it closed the connection during the TLS handshake: if that port has no TLS, write mqtt://")
        if isinstance(error, ssl.SSLError) and (problem := tls_problem(error, address, certificates)):
            raise problem from error
        return (0, reason_of(error))
    client.loop_start()
    failure = reply.wait(min(connack_timeout_s, max(0.5, deadline - time.monotonic())))
    if failure is None:
        return None
    client.stop()
    if failure == (_UNSPECIFIED, _CLOSED):
        if create_context and (rejection := probe_rejection(address, create_context, certificates)):
            raise rejection
        if not create_context and speaks_tls(address):
            cause = f"broker {address} speaks TLS on that port"
            raise ConnectionProblemError(ProblemKind.NEEDS_TLS, cause, "write mqtts://")
    return failure


_CLOSED = "it closed the connection without a reply"
_NO_REPLY = -1
_UNSPECIFIED = 0x80
_NOT_MQTT5 = (_NO_REPLY, _UNSPECIFIED, 0x81, 0x82, 0x84)  # Malformed, protocol error, unsupported version.
RESTRICTED = 0x1_00  # The broker accepts, but its text says what it lacks; no reason code of MQTT has this value.
LACKING = {0x9A: "no retained messages", 0x9B: "no quality of service (QoS) 1", RESTRICTED: ""}
_REFUSALS = {
    0x85: "choose another --vehicle or --worker name",
    0x86: "check the user name and SKYLANE_BROKER_PASSWORD",
    0x87: "check the user (mqtt://user@host) and SKYLANE_BROKER_PASSWORD, or the certificate",
    0x8A: "this client is banned; ask the operator of the broker",
    0x8C: "the broker requires another authentication method",
}
