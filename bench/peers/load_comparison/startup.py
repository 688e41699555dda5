"""Starts, checks, warms up and freezes all servers before the comparison, or records why a server is skipped."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

from bench.peers.clients.client import PeerError
from bench.peers.load_comparison.load import warm_up
from bench.peers.load_comparison.peer_endpoint import PeerEndpoint
from bench.peers.rig.starter import Starter
from bench.peers.rig.workload import Job
from shared.errors import SkylaneError


class LineUp:
    """Starts servers that run until the given stack is closed."""

    def __init__(self, starter: Starter, work: Iterable[Sequence[Job]], turn_s: float, stack: ExitStack) -> None:
        """Creates the starter; each server is warmed up with `work`, for at most `turn_s` per item."""
        self.endpoints: list[PeerEndpoint] = []
        self.skipped: dict[str, str] = {}  # Servers or transports that are skipped, and why.
        self._starter, self._work, self._turn_s, self._stack = starter, list(work), turn_s, stack

    def start(self, wanted: Mapping[str, Sequence[str] | None], on_step: Callable[[str], None]) -> None:
        """Starts the servers of `wanted`, with their transports (None: all); `on_step` is called before each.

        Raises:
            PeerError: no server can be started.
        """
        for name, ways in wanted.items():
            on_step(f"starting {name}")
            with ExitStack() as attempt:
                try:
                    found = self._starter.start(name, attempt, ways)
                except SkylaneError as error:
                    self.skipped[name] = str(error)
                    continue
                self._stack.enter_context(attempt.pop_all())
            for endpoint in found:
                on_step(f"warming up {endpoint.name}")
                self._warm(endpoint)
        if not self.endpoints:
            raise nothing_to_measure(self.skipped)

    def _warm(self, endpoint: PeerEndpoint) -> None:
        try:
            with endpoint.awake():
                for jobs in self._work:
                    warm_up(endpoint.connect, jobs, self._turn_s)
        except SkylaneError as error:
            self.skipped[endpoint.name] = str(error)
        else:
            self.endpoints.append(endpoint)


def nothing_to_measure(skipped: Mapping[str, str]) -> PeerError:
    """Returns the error that all servers were skipped, with the reasons."""
    return PeerError("no server to measure: " + "; ".join(f"{who}: {why}" for who, why in skipped.items()))
