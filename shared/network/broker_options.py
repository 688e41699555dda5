"""How a command is told where the broker is: the flags, the environment, and the bus they give."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from shared.flags import FiniteRange, ValidatedText
from shared.mqtt.bus import Will
from shared.mqtt.inflight import MAX_INFLIGHT
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address, Certificates
from shared.network.tls import CertificateError

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_BROKER = "mqtt://127.0.0.1:1883"


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the broker is, how long to knock, what to be let in by, and the narrowest link on the way."""

    broker: str = DEFAULT_BROKER
    connect_timeout_s: float = 10.0
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
        """Connect as the node of this `name`, by which its certificate is found; None: as nobody in particular.

        `will`: None for whom nobody would miss. For the others see `MqttBus`.

        Raises:
            SkylaneError: the address cannot be read, nothing answers in time, or one of both sides refuses the other.
        """
        return MqttBus(
            Address.parse(self.broker),
            client_id,
            will=will,
            certificates=self.certificates(name),
            connect_timeout_s=self.connect_timeout_s,
            min_bandwidth_mbps=self.min_bandwidth_mbps,
            max_inflight=max_inflight,
            on_connected=on_connected,
            on_fault=on_fault,
            on_waiting=on_waiting,
        )

    def certificates(self, name: str | None) -> Certificates | None:
        """The files by which the node of this `name` knows the broker and is known by it; None: none were given.

        Raises:
            CertificateError: the folder has no such file.
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
    """Add the flags that say where the broker is; they arrive as the fields of `Connection` do."""
    existing = click.Path(exists=True, dir_okay=False, path_type=Path)
    options = (
        click.option(
            "--broker",
            type=ValidatedText("URL", Address.parse_without_password),
            envvar="SKYLANE_BROKER",
            help="mqtt://[user@]host[:port], or mqtts:// for TLS. The password is in SKYLANE_BROKER_PASSWORD, or in the file "
            f"that SKYLANE_BROKER_PASSWORD_FILE names. [{DEFAULT_BROKER}]",
        ),
        click.option(
            "--connect-timeout", "connect_timeout_s", type=FiniteRange(0.1), help="Connection timeout in seconds. [10]"
        ),
        click.option(
            "--certs",
            envvar="SKYLANE_CERTS",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Folder with ca.crt and this node's certificate and key, <name>.crt and <name>.key. [SKYLANE_CERTS]",
        ),
        click.option("--tls-ca", type=existing, help="Certificate authority of the broker (PEM)."),
        click.option("--tls-cert", type=existing, help="Certificate of this node (PEM)."),
        click.option("--tls-key", type=existing, help="Private key of this node (PEM)."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _found(path: Path, flag: str) -> Path:
    if not path.is_file():
        raise CertificateError(
            f"certs: there is no {path}: make it with 'skylane broker certs', or name another file with {flag}"
        )
    return path
