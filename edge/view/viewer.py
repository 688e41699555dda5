"""The contract and the table of viewers, which show a run while it is in progress."""

import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from edge.sinks.scene import Scene
from edge.sinks.sink import FrameResult
from shared.errors import SkylaneError
from shared.messages.model_card import ModelCard
from shared.network.endpoint import free_ports

LOOPBACK = "127.0.0.1"


class ViewError(SkylaneError):
    """A viewer cannot be started, or does not support a setting."""


class ViewSettings(NamedTuple):
    """The settings of a live view: the viewer, its address, the model and its limits."""

    viewer: str
    host: str
    card: ModelCard
    bytes_per_s: float | None = None
    history_mb: int = 100  # Data that Rerun's server keeps for pages that are opened later.
    tls_cert: Path | None = None
    tls_key: Path | None = None


class ViewUpdate(NamedTuple):
    """The frames and rows since the previous update, and the totals of the run."""

    time_ns: int
    frames: list[tuple[int, FrameResult]]  # Each with the time at which its result was ready.
    rows: list[dict[str, str]]  # New rows of the latency log.
    outcomes: dict[str, int]  # The totals of the run so far.
    in_flight: int


class Viewer(Protocol):
    """A server to which the user's programs connect. Built as `Viewer(settings)`, in the process of the view."""

    scene: Scene
    address: str  # URL that the user opens.
    note: str  # A short hint for the user.

    def check(self) -> None:
        """Raises a ViewError if the server has ended."""

    def close(self) -> None:
        """Sends the remaining data, for a second at most, and ends the server."""


class ViewerEntry(NamedTuple):
    """A row of the table."""

    path: str  # "module:attribute" of a Viewer.
    extra: str  # The pip extra that installs its library.
    has_tls: bool


VIEWERS = {
    "rerun": ViewerEntry("edge.view.rerun_viewer:RerunViewer", "view", has_tls=False),
    "foxglove": ViewerEntry("edge.view.foxglove_viewer:FoxgloveViewer", "view", has_tls=True),
}

_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?([kMG])?bit(?:/s)?")
_FACTORS = {None: 1, "k": 1e3, "M": 1e6, "G": 1e9}
_SLOWEST_BIT_S = 100_000.0  # Lowest rate: the smallest pictures once per second.


def bytes_per_s(rate: str) -> float:
    """Parses a rate such as "2Mbit".

    Raises:
        ViewError: the text is not a rate, or the rate is too low for any picture.
    """
    match = _RATE.fullmatch(rate)
    bits_per_s = float(match[1]) * _FACTORS[match[2]] if match else 0.0
    if bits_per_s < _SLOWEST_BIT_S:
        raise ViewError(f"{rate[:40]!r} is no rate of pictures: give one from 100kbit on, such as 500kbit or 2Mbit")
    return bits_per_s / 8


def ipv4_address(host: str) -> str:
    """Returns the IPv4 address of a host.

    Raises:
        ViewError: the host has no IPv4 address.
    """
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise ViewError(
            f"{host[:80]!r} has no IPv4 address: give --view-host one of this machine, or {LOOPBACK}"
        ) from error


def free_port(host: str, preferred: int = 0) -> int:
    """Returns the preferred TCP port if nothing listens on it, otherwise a free one.

    Raises:
        ViewError: this machine does not have the address.
    """
    with suppress(OSError), socket.create_server((host, preferred)) as probe:
        return int(probe.getsockname()[1])
    try:
        return free_ports(1, host)[0]
    except OSError as error:
        raise ViewError(
            f"no server can listen on {host}: {error.strerror}: give --view-host an address of this machine"
        ) from error
