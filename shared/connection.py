"""How a command is told where the broker is: the flags, the environment, and the bus they give."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from shared.address import Address, Certificates
from shared.bus import Will
from shared.mqtt import MqttBus

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_BROKER = "mqtt://127.0.0.1:1883"


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the broker is and how long to knock."""

    broker: str = DEFAULT_BROKER
    connect_timeout_s: float = 10.0
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def open(
        self,
        client_id: str,
        will: Will | None,
        *,
        on_connected: Callable[[], None] | None = None,
        on_fault: Callable[[BaseException], None] | None = None,
        on_waiting: Callable[[str], None] | None = None,
    ) -> MqttBus:
        """Connect; `will`: None for whom nobody would miss.

        Raises:
            SkylaneError: the address cannot be read, nothing answers in time, or the broker says no.
        """
        certificates = None
        if self.tls_ca:
            certificates = Certificates(
                str(self.tls_ca),
                str(self.tls_cert) if self.tls_cert else None,
                str(self.tls_key) if self.tls_key else None,
            )
        return MqttBus(
            Address.parse(self.broker),
            client_id,
            will=will,
            certificates=certificates,
            connect_timeout_s=self.connect_timeout_s,
            on_connected=on_connected,
            on_fault=on_fault,
            on_waiting=on_waiting,
        )


def broker_options(command: Command) -> Command:
    """Add the flags that say where the broker is; they arrive as the fields of `Connection` do."""
    existing = click.Path(exists=True, dir_okay=False, path_type=Path)
    options = (
        click.option(
            "--broker",
            envvar="SKYLANE_BROKER",
            help=f"mqtt://[user@]host[:port], or mqtts:// for TLS; password in SKYLANE_BROKER_PASSWORD. [{DEFAULT_BROKER}]",
        ),
        click.option(
            "--connect-timeout", "connect_timeout_s", type=click.FloatRange(0.1), help="Seconds to knock. [10]"
        ),
        click.option("--tls-ca", type=existing, help="The authority that signed the broker's certificate, PEM."),
        click.option("--tls-cert", type=existing, help="This node's certificate, PEM."),
        click.option("--tls-key", type=existing, help="Its key, PEM."),
    )
    for option in reversed(options):
        command = option(command)
    return command
