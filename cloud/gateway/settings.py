"""What the gateway can be told."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Where it listens, whom it lets in and what it takes."""

    http: str | None = None  # HOST:PORT; None: no HTTP. Port 0: any that is free.
    grpc: str | None = None  # The same of gRPC.
    tls_cert: Path | None = None  # PEM; with both files every door speaks TLS alone.
    tls_key: Path | None = None
    tokens: Path | None = None  # One `NAME TOKEN` a line; None, and no SKYLANE_GATEWAY_TOKEN: anyone may call.
    images: Path | None = None  # The folder of which /api/detect reads pictures by path; None: uploads alone.
    origins: tuple[str, ...] = ()  # Web pages of these may call (CORS); empty: none.
    allowed_hosts: tuple[str, ...] = ()  # Names by which HTTP callers may address it, beside its IP addresses.
    max_message_bytes: int = 128 << 20  # Of one call, and of its answer.
    max_calls: int = 256  # That are answered at a time; more are refused.
    body_timeout_s: float = (
        30.0  # Within which the body of an HTTP call, or the message of one of gRPC, must have come.
    )
    header_timeout_s: float = 10.0  # Within which its first byte, and from that on its headers.
    answer_s: float = 60.0  # Within which its caller must have taken the answer.
    silent_s: float = 600.0  # After which a gRPC stream of calls ends on which nothing was said.
    shutdown_grace_s: float = 5.0  # For gRPC calls under way when the worker stops.
