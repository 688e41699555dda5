"""The first connect to a broker: knocking until it answers, and saying why where it does not."""

import queue
import ssl
import time
from collections.abc import Callable

from paho.mqtt.enums import MQTTProtocolVersion

from shared.errors import SkylaneError
from shared.mqtt.paho_client import WatchedClient
from shared.network.address import Address, Certificates
from shared.network.tls import refusal, speaks_tls, told

_LONGEST_WAIT_S = 1.0


class BrokerUnreachableError(SkylaneError):
    """No broker answered in time."""


class BrokerRefusedError(SkylaneError):
    """A broker answered and said no."""


class Answer:
    """What came of one try to connect; the network thread tells, the main thread waits."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[tuple[int, str] | None] = queue.SimpleQueue()
        self._is_settled = False

    def accepted(self) -> None:
        """The broker said yes."""
        self._tell(None)

    def refused(self, code: int, text: str) -> None:
        """The broker said no, with a reason code of MQTT 5."""
        self._tell((code, text))

    def hung_up(self) -> None:
        """It said nothing, as one that knows no MQTT 5 may do; no news where it had answered before."""
        self._tell((_UNSPECIFIED, _HUNG_UP))

    def wait(self, timeout_s: float) -> tuple[int, str] | None:
        """None: accepted. Otherwise the reason code (0: of the network) and what to say of it."""
        try:
            return self._told.get(timeout=timeout_s)
        except queue.Empty:
            return (_SILENT, "it took the connection but never answered")

    def _tell(self, outcome: tuple[int, str] | None) -> None:
        if not self._is_settled:  # By one thread alone.
            self._is_settled = True
            self._told.put(outcome)


class FirstConnect:
    """Tries a broker until it accepts us; speaks MQTT 5, or 3.1.1 where it knows no better."""

    def __init__(
        self,
        address: Address,
        client_id: str,
        *,
        make: Callable[[MQTTProtocolVersion], WatchedClient],
        answer_s: float,
        secure: Callable[[], ssl.SSLContext] | None = None,
        certificates: Certificates | None = None,
        waiting: Callable[[str], None] | None = None,
    ) -> None:
        """`make` gives a new client, `secure` what secures it. `answer_s`: for the answer to one try, at most.

        `waiting` is told, after a failed try, why there is no connection yet.
        """
        self._address = address
        self._client_id = client_id
        self._make = make
        self._answer_s = answer_s
        self._secure = secure
        self._certificates = certificates
        self._waiting = waiting or (lambda _: None)

    def within(self, timeout_s: float) -> WatchedClient:
        """Connect; the client's network thread runs, and its user data is the `Answer` that it told.

        Raises:
            BrokerUnreachableError: nothing answered in time.
            BrokerRefusedError: the broker knows us and says no, or one of both distrusts the other's certificate.
        """
        deadline = time.monotonic() + timeout_s
        protocol = MQTTProtocolVersion.MQTTv5
        tries = 0
        is_heard = is_sure = False
        while True:
            client = self._make(protocol)
            outcome = self._try(client, deadline)
            if outcome is None and protocol is MQTTProtocolVersion.MQTTv311 and not is_sure:
                client.end()  # Silence may have been slowness: a worker could not share frames over 3.1.1 for all its life.
                is_heard, protocol = True, MQTTProtocolVersion.MQTTv5
                continue
            if outcome is None:
                return client
            code, text = outcome
            if protocol is MQTTProtocolVersion.MQTTv5 and code in _NOT_MQTT5:
                is_sure = is_heard or code != _SILENT
                protocol = MQTTProtocolVersion.MQTTv311
                continue
            protocol = MQTTProtocolVersion.MQTTv5  # A broker that was only starting deserves to be asked again.
            if code in _REFUSALS:
                raise BrokerRefusedError(f"broker {self._address} refuses {self._client_id}: {text}: {_REFUSALS[code]}")
            if time.monotonic() >= deadline:
                raise BrokerUnreachableError(
                    f"no broker at {self._address} after {timeout_s:g} s ({text}): start one with 'skylane broker' "
                    "or give its address with --broker"
                )
            tries += 1
            self._waiting(f"no broker at {self._address} yet ({text}); trying again")
            time.sleep(min(0.1 * 2**tries, _LONGEST_WAIT_S, max(0.0, deadline - time.monotonic())))

    def _try(self, client: WatchedClient, deadline: float) -> tuple[int, str] | None:
        """Connect once. None: accepted. Otherwise the reason code (0: of the network) and its text."""
        answer = Answer()
        client.user_data_set(answer)
        try:
            client.open(self._address.host, self._address.port)
        except (OSError, ValueError) as error:
            client.end()
            if self._secure and isinstance(error, (ssl.SSLEOFError, ConnectionResetError)):
                return (0, "it hung up on a handshake of TLS: if it speaks none on that port, write mqtt://")
            if isinstance(error, ssl.SSLError):
                self._refuse(told(error, self._address, self._certificates), error)
            return (0, str(error) or type(error).__name__)
        client.loop_start()
        outcome = answer.wait(min(self._answer_s, max(0.5, deadline - time.monotonic())))
        if outcome is None:
            return None
        client.end()
        if outcome != (_UNSPECIFIED, _HUNG_UP):
            return outcome
        if self._secure:
            self._refuse(refusal(self._address, self._secure, self._certificates))
        elif speaks_tls(self._address):
            self._refuse(f"broker {self._address} speaks TLS on that port: write mqtts://")
        return outcome

    def _refuse(self, why: str | None, cause: BaseException | None = None) -> None:
        if why is not None:
            raise BrokerRefusedError(why) from cause


_HUNG_UP = "it hung up without an answer"
_SILENT = -1
_UNSPECIFIED = 0x80
_NOT_MQTT5 = (_SILENT, _UNSPECIFIED, 0x81, 0x82, 0x84)  # Unspecified, malformed, protocol error, unsupported version.
_REFUSALS = {
    0x85: "choose another --vehicle or --worker name",
    0x86: "check the user name and SKYLANE_BROKER_PASSWORD",
    0x87: "check the user (mqtt://user@host) and SKYLANE_BROKER_PASSWORD, or the certificate",
    0x8A: "this client is banned; ask whoever runs the broker",
    0x8C: "the broker wants another way of authentication",
}
