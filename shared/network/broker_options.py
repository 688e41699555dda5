"""Command-line options for the broker connection, and the bus that they configure."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from shared.flags import EXISTING_FILE, FiniteRange, ValidatedText
from shared.mqtt.bus import Will
from shared.mqtt.inflight import MAX_INFLIGHT
from shared.mqtt.paho_bus import MqttBus
from shared.mqtt.settings import CONNECT_TIMEOUT_S, MqttSettings
from shared.network.address import Address, Certificates
from shared.network.tls import CertificateError

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_BROKER = "mqtt://127.0.0.1:1883"


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Address, credentials and limits of a broker connection."""

    broker: str = DEFAULT_BROKER
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    certs: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    min_bandwidth_mbps: float | None = None

    def open(
        self,
        client_id: str,
        will: Will | None,
        *,
        name: str | None = None,
        max_inflight: int = MAX_INFLIGHT,
        on_connected: Callable[[], None] | None = None,
        on_fault: Callable[[BaseException], None] | None = None,
        on_waiting: Callable[[str], None] | None = None,
    ) -> MqttBus:
        """Connects to the broker; see `MqttBus` and `MqttSettings` for the arguments.

        `name` is the node whose certificate to use; None: connect without a certificate from the folder `certs`.

        Raises:
            SkylaneError: the address is not valid, no broker answers in time, or one side refuses the other.
        """
        return MqttBus(
            Address.parse(self.broker),
            client_id,
            MqttSettings(
                connect_timeout_s=self.connect_timeout_s,
                min_bandwidth_mbps=self.min_bandwidth_mbps,
                max_inflight=max_inflight,
            ),
            will=will,
            certificates=self.certificates(name),
            on_connected=on_connected,
            on_fault=on_fault,
            on_waiting=on_waiting,
        )

    def certificates(self, name: str | None) -> Certificates | None:
        """Returns the TLS files of the node called `name`; None if no option names any.

        Raises:
            CertificateError: the folder `certs` lacks a file.
        """
        authority, certificate, key = self.tls_ca, self.tls_cert, self.tls_key
        if self.certs is not None:
            authority = authority or _found(self.certs / "ca.crt", "--tls-ca")
            if name is not None and certificate is None and key is None:
                certificate = _found(self.certs / f"{name}.crt", "--tls-cert")
                key = _found(self.certs / f"{name}.key", "--tls-key")
        if authority is None and certificate is None and key is None:
            return None
        return Certificates(*(str(path) if path else None for path in (authority, certificate, key)))


def broker_options(command: Command) -> Command:
    """Adds the options of the broker connection, which arrive under the field names of `BrokerOptions`."""
    options = (
        click.option(
            "--broker",
            type=ValidatedText("URL", Address.parse_without_password),
            envvar="SKYLANE_BROKER",
            help="mqtt://[user@]host[:port], or mqtts:// for TLS. The password is read from SKYLANE_BROKER_PASSWORD, or "
            f"from the file that SKYLANE_BROKER_PASSWORD_FILE names. [{DEFAULT_BROKER}]",
        ),
        click.option(
            "--connect-timeout",
            "connect_timeout_s",
            type=FiniteRange(0.1),
            help=f"Connection timeout in seconds. [{CONNECT_TIMEOUT_S:g}]",
        ),
        click.option(
            "--certs",
            envvar="SKYLANE_CERTS",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Folder with ca.crt and this node's certificate and key, <name>.crt and <name>.key. [SKYLANE_CERTS]",
        ),
        click.option(
            "--tls-ca", type=EXISTING_FILE, help="Certificate authority that signed the broker's certificate (PEM)."
        ),
        click.option("--tls-cert", type=EXISTING_FILE, help="Certificate of this node (PEM)."),
        click.option("--tls-key", type=EXISTING_FILE, help="Private key of this node (PEM)."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _found(path: Path, flag: str) -> Path:
    if not path.is_file():
        raise CertificateError(
            f"certs: {path} does not exist: make it with 'skylane broker certs', or name another file with {flag}"
        )
    return path
