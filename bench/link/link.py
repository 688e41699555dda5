"""The link between a vehicle and its broker, made as bad as a study wants it: what it is like, and a running one."""

import json
import select
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic import Field

from shared.config import Section
from shared.errors import SkylaneError

LOOPBACK = "127.0.0.1"
_START_S = 60.0  # A new process imports for seconds where the machine is busy.
_END_S = 5.0
_READ_BYTES = 1 << 16


class LinkError(SkylaneError):
    """A link cannot be run as asked."""


class LinkSilentError(LinkError):
    """A link's process is there and does not answer."""


class LinkSpec(Section):
    """What a link is like. "Up" is from whoever connects to it (the vehicle) to where it leads (the broker).

    Bandwidth is of payload, and shared by all connections: a link is one radio. `bench/link/timing.py` says how the
    times come about. The default is a link without any fault.
    """

    delay_ms: float = Field(default=0.0, ge=0, le=10_000, description="Least delay one way, in both directions.")
    delay_up_ms: float | None = Field(default=None, ge=0, le=10_000, description="The same, up only.")
    delay_down_ms: float | None = Field(default=None, ge=0, le=10_000, description="The same, down only.")
    jitter_ms: float = Field(default=0.0, ge=0, le=10_000, description="Mean of what comes on top of the delay.")
    bandwidth_mbps: float | None = Field(default=None, gt=0, le=100_000, description="Mbit/s in both directions.")
    bandwidth_up_mbps: float | None = Field(default=None, gt=0, le=100_000, description="The same, up only.")
    bandwidth_down_mbps: float | None = Field(default=None, gt=0, le=100_000, description="The same, down only.")
    loss_percent: float = Field(
        default=0.0, ge=0, le=50, description="Of segments; TCP repeats them, which takes time."
    )
    slice_bytes: int | None = Field(default=None, ge=1, description="Write in pieces of so many bytes.")
    corrupt_per_mb: float = Field(default=0.0, ge=0, le=1e6, description="Flipped bits in a million bytes.")
    half_open_after_s: float | None = Field(
        default=None, ge=0, le=86_400, description="From then on swallow all bytes and close nothing."
    )
    reset_after_s: float | None = Field(
        default=None, ge=0, le=86_400, description="Reset every connection that is so old."
    )
    seed: int = Field(default=0, ge=0, lt=1 << 63, description="Of jitter, loss and corruption.")

    def delay_s(self, *, up: bool) -> float:
        """The least delay of a direction."""
        own = self.delay_up_ms if up else self.delay_down_ms
        return (self.delay_ms if own is None else own) / 1e3

    def bytes_per_s(self, *, up: bool) -> float | None:
        """The bandwidth of a direction; None: unlimited."""
        own = self.bandwidth_up_mbps if up else self.bandwidth_down_mbps
        mbps = self.bandwidth_mbps if own is None else own
        return None if mbps is None else mbps * 1e6 / 8

    @property
    def round_trip_s(self) -> float:
        """The mean time there and back of a byte that waits behind no other."""
        return self.delay_s(up=True) + self.delay_s(up=False) + 2 * self.jitter_ms / 1e3


# 4G: the mean of a round trip is 53 ms (Ofcom, "Measuring mobile broadband in the UK", 2014: 53.1 ms over four
# operators); bandwidths after Cellsmart's drive tests of 2022 in 51 countries (20 Mbit/s up) and Ofcom's "Mobile
# Matters" of 2023 (29.5 Mbit/s down, 44 at the best operator). 5G: 31 up and 242 down in the same drive tests; 16 to
# 20 ms there and back to a server of the same country (Ofcom, "Mobile Matters", 2024). Means of good coverage: a
# single place may be far from them.
PROFILES = MappingProxyType(
    {
        "none": LinkSpec(),
        "4g": LinkSpec(delay_ms=22, jitter_ms=4.5, bandwidth_up_mbps=20, bandwidth_down_mbps=40),
        "5g": LinkSpec(delay_ms=8, jitter_ms=2, bandwidth_up_mbps=30, bandwidth_down_mbps=240),
        "lossy": LinkSpec(delay_ms=25, jitter_ms=5, bandwidth_mbps=20, loss_percent=2),
        "narrow": LinkSpec(delay_ms=50, jitter_ms=10, bandwidth_mbps=1),
    }
)


@dataclass(frozen=True, slots=True)
class LinkCounts:
    """What a link has done so far."""

    bytes_up: int = 0  # Released to where the link leads.
    bytes_down: int = 0  # Released to those who connected.
    connections: int = 0
    connections_open: int = 0
    refused: int = 0  # Nobody listened at the far end, or there were too many.
    resets: int = 0
    segments_lost: int = 0
    bits_flipped: int = 0
    bytes_swallowed: int = 0
    releases: int = 0  # Pieces that had to wait for their moment.
    late_p50_ms: float | None = None  # How long after their moment they went, of the last two thousand.
    late_p99_ms: float | None = None


class Link(AbstractContextManager["Link"]):
    """A TCP proxy in a process of its own, so that it takes no time from the nodes on either side of it.

    It listens on IPv4 loopback unless told otherwise, ends with the `with` block, and with this process, however that
    dies. May be used by several threads.
    """

    def __init__(
        self,
        spec: LinkSpec,
        to_host: str,
        to_port: int,
        listen_port: int = 0,
        *,
        listen_host: str = LOOPBACK,
        answer_s: float = 5.0,
    ) -> None:
        """Start a link to `to_host`:`to_port`; `listen_port` 0 takes a free one. It need not be reachable yet.

        `answer_s`: how long it is waited for when it is asked or told something: it may stand still.

        Raises:
            LinkError: the port is taken, or the address cannot be listened on.
        """
        self.spec = spec
        self._lock = threading.Lock()
        self._last = LinkCounts()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "bench.link.proxy", spec.model_dump_json()),
                *(to_host, str(to_port), listen_host, str(listen_port)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._answer_s = answer_s
        self._heard = b""
        self._owed = 0  # Answers to questions that were given up on, which come before the next one's.
        try:
            self.port: int = self._answer(_START_S)["port"]
        except BaseException:
            self._end()
            raise
        self.host = listen_host

    @property
    def url(self) -> str:
        """What a node connects to in the broker's place."""
        return f"mqtt://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The proxy's process."""
        return self._process.pid

    @property
    def bytes_up(self) -> int:
        """Bytes that have left the link at its far end."""
        return self.counts().bytes_up

    @property
    def bytes_down(self) -> int:
        """Bytes that have left the link at its near end."""
        return self.counts().bytes_down

    def counts(self) -> LinkCounts:
        """What it has done so far; once it has ended, or while it stands still, what was last known."""
        if self._process.poll() is None:
            with suppress(LinkError):
                self._last = LinkCounts(**self._ask({"counts": True}))
        return self._last

    def set(self, spec: LinkSpec) -> None:
        """Be like `spec` from now on. What is under way keeps its time; `half_open_after_s` counts from now.

        Raises:
            LinkError: the proxy is gone, or stands still; what it was told it does when it goes on.
        """
        self._ask({"set": spec.model_dump()})
        self.spec = spec

    def close(self) -> None:
        """End it; connections that are open break."""
        self.counts()
        self._end()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(question).encode() + b"\n")
            except (OSError, ValueError) as error:
                raise LinkError(f"the link's process {self.pid} is gone: start the link again") from error
            try:
                while self._owed:
                    self._line(self._answer_s)
                    self._owed -= 1
                return self._answer(self._answer_s)
            except LinkSilentError:
                self._owed += 1
                raise

    def _answer(self, patience_s: float) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._line(patience_s))
        if "error" in answer:
            raise LinkError(answer["error"])
        return answer

    def _line(self, patience_s: float) -> bytes:
        """The next line that the proxy says."""
        assert self._process.stdout is not None
        until_s = time.monotonic() + patience_s
        while b"\n" not in self._heard:
            if not select.select([self._process.stdout], [], [], max(0.0, until_s - time.monotonic()))[0]:
                raise LinkSilentError(
                    f"the link's process {self.pid} has not answered for {patience_s:g} s: does it stand still?"
                )
            piece = self._process.stdout.read(_READ_BYTES)
            if not piece:
                raise LinkError(f"the link's process {self.pid} is gone: start the link again")
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        return line

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()  # It holds nothing that a kill could spoil.
        self._process.wait(_END_S)
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()
