"""Settings of the gateway."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cloud.config import CloudConfig

_KEYS = CloudConfig.model_fields


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Addresses, access rules and limits of the HTTP and gRPC servers."""

    http: str | None = None  # HOST:PORT of the HTTP server; port 0: any free port; None: no HTTP server.
    grpc: str | None = None  # The same for gRPC.
    listen: Mapping[str, str] = field(default_factory=dict)  # Addresses of further frontends, by their names.
    tls_cert: Path | None = None  # PEM file; with certificate and key, both servers accept only TLS.
    tls_key: Path | None = None
    tokens: Path | None = None  # File of `NAME TOKEN` lines; None and no SKYLANE_GATEWAY_TOKEN: no token is required.
    images: Path | None = None  # Folder from which /api/detect reads images by path; None: uploads only.
    origins: tuple[str, ...] = ()  # Origins of web pages that may call (CORS).
    allowed_hosts: tuple[str, ...] = ()  # Host names that HTTP calls may use in addition to IP addresses.
    max_message_bytes: int = _KEYS["max_message_bytes"].default  # Size limit of a request, and of its response.
    max_calls: int = _KEYS["max_calls"].default  # Concurrent calls; further ones fail.
    body_timeout_s: float = 30.0  # Time to receive the body of an HTTP request, or a gRPC message.
    header_timeout_s: float = 10.0  # Time to receive the first byte of an HTTP request, and again its headers.
    send_timeout_s: float = 60.0  # Time for the caller to receive the response.
    stream_idle_timeout_s: float = 600.0  # Time after which an idle gRPC stream is closed.
    shutdown_grace_s: float = 5.0  # Time for active gRPC calls to end when the worker stops.

    @classmethod
    def of(cls, config: CloudConfig) -> Self:
        """Returns the settings of a worker's gateway."""
        return cls(
            listen=config.addresses,
            tls_cert=config.gateway_tls_cert,
            tls_key=config.gateway_tls_key,
            tokens=config.tokens,
            images=config.images,
            origins=config.origins,
            allowed_hosts=config.allowed_hosts,
            max_message_bytes=config.max_message_bytes,
            max_calls=config.max_calls,
        )

    @property
    def addresses(self) -> Mapping[str, str]:
        """The address of each frontend that listens, by its name."""
        own = {name: address for name, address in (("http", self.http), ("grpc", self.grpc)) if address is not None}
        return own | dict(self.listen)
