"""The broker connection of a node: its configuration keys, its command-line options, and the bus that they configure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import DirectoryPath, FilePath, model_validator

from shared.config import OneOf, Section, parsed_by, setting
from shared.errors import SkylaneError
from shared.flags import key_options, override
from shared.logs import DEFAULT_LEVEL, LEVELS, LogFormat
from shared.mqtt.bus import Will
from shared.mqtt.paho_bus import MqttBus
from shared.mqtt.paho_client import CONNECT_TIMEOUT_S, MAX_INFLIGHT, MqttSettings
from shared.network.address import Address, Certificates
from shared.network.endpoint import BROKER_PASSWORD, BROKER_PASSWORD_FILE
from shared.network.tls import CertificateError
from shared.runtime.health_file import UPDATE_INTERVAL_S
from shared.sanitize import printable

DAY_S = 86_400.0
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


def _receiver_url(text: str) -> str:
    """Returns the base URL of a receiver of traces if it is one: http or https, without a user name.

    Raises:
        SkylaneError: it is not.
    """
    try:
        parts = urlsplit(text if text.isprintable() and " " not in text else "")
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or "@" in text or parts.query or parts.fragment:
        raise SkylaneError(f"receiver of traces {printable(text)[:80]!r} cannot be used: write http://HOST:4318")
    return text


def _broker_url(text: str) -> str:
    Address.parse_without_password(text)
    return text


class NodeSection(Section):
    """Keys that a vehicle and a worker share: the connection to the broker, the health file and the log lines."""

    broker: Annotated[str, parsed_by(_broker_url)] = setting(
        DEFAULT_BROKER,
        f"mqtt://[user@]host[:port], or mqtts:// for TLS. The password is read from {BROKER_PASSWORD}, or from the file that "
        f"{BROKER_PASSWORD_FILE} names.",
        metavar="URL",
        envvar="SKYLANE_BROKER",
    )
    connect_timeout_s: float = setting(
        CONNECT_TIMEOUT_S, "Connection timeout in seconds.", "--connect-timeout", ge=0.1, le=DAY_S
    )
    certs: DirectoryPath | None = setting(
        None,
        "Folder with ca.crt and this node's certificate and key, <name>.crt and <name>.key.",
        shown="SKYLANE_CERTS",
        envvar="SKYLANE_CERTS",
    )
    tls_ca: FilePath | None = setting(None, "Certificate authority that signed the broker's certificate (PEM).")
    tls_cert: FilePath | None = setting(None, "Certificate of this node (PEM).")
    tls_key: FilePath | None = setting(None, "Private key of this node (PEM).")
    qos: int = setting(1, "MQTT quality of service of frames and results.", ge=0, le=1)
    health_file: Path | None = setting(
        None,
        f"File to touch every {UPDATE_INTERVAL_S:g} s while this node is online, for health checks.",
        shown="none",
    )
    otel: Annotated[str, parsed_by(_receiver_url)] | None = setting(
        None,
        "Receiver of traces: the base URL of an OpenTelemetry collector (OTLP over HTTP). Headers and certificates are read from "
        "OpenTelemetry's own environment variables.",
        metavar="URL",
        shown="none",
    )
    otel_share: float = setting(1.0, "Share of the frames of which traces are exported.", ge=0, le=1)
    log_level: Annotated[str, OneOf("log level", LEVELS)] = setting(DEFAULT_LEVEL, "Minimum log level.")
    log_format: LogFormat = setting(LogFormat.TEXT, "Format of log lines on standard error.")

    @model_validator(mode="after")
    def _certificates_have_tls(self) -> Self:
        for key in ("tls_ca", "tls_cert", "tls_key"):
            if getattr(self, key) is not None and not Address.parse_without_password(self.broker).tls:
                raise ValueError(f"`{key}`: {self.broker} has no TLS: set `broker` to mqtts://, or leave the file out")
        return self

    @model_validator(mode="after")
    def _share_has_a_receiver(self) -> Self:
        if self.otel is None and self.otel_share != 1:
            raise ValueError("`otel_share`: no traces are exported: set `otel`, or leave it out")
        return self

    @property
    def connection(self) -> BrokerOptions:
        """The settings of the connection to the broker."""
        return BrokerOptions(**self.model_dump(include=set(BrokerOptions.__dataclass_fields__)))


_BROKER_KEYS = ("broker", "connect_timeout_s", "certs", "tls_ca", "tls_cert", "tls_key")
broker_options = key_options(NodeSection, "Connection", *_BROKER_KEYS)


def connection_from(flags: Mapping[str, Any]) -> BrokerOptions:
    """Returns the connection that the values of `broker_options` configure; other flags are ignored.

    Raises:
        click.UsageError: a value is not valid.
    """
    return override(NodeSection(), {key: flags.get(key) for key in _BROKER_KEYS}).connection


def _found(path: Path, flag: str) -> Path:
    if not path.is_file():
        raise CertificateError(
            f"certs: {path} does not exist: make it with 'skylane broker certs', or name another file with {flag}",
            is_authority=flag == "--tls-ca",
        )
    return path
