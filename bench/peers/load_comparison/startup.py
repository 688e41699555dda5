"""Who takes part: each server started, answering, warmed up and stopped; or the reason why it is not."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

from bench.peers.clients.client import PeerError
from bench.peers.load_comparison.candidate import Contestant
from bench.peers.load_comparison.load import warm_up
from bench.peers.rig.starter import Starter
from bench.peers.rig.workload import Job
from shared.errors import SkylaneError


class LineUp:
    """Servers with the work that awaits them, up until the stack that it is given is closed."""

    def __init__(self, starter: Starter, work: Iterable[Sequence[Job]], turn_s: float, stack: ExitStack) -> None:
        """`work`: what each is warmed up with, one after the other, for `turn_s` at most each."""
        self.contestants: list[Contestant] = []
        self.skipped: dict[str, str] = {}  # Servers, or ways to them, and why they take no part.
        self._starter, self._work, self._turn_s, self._stack = starter, list(work), turn_s, stack

    def start(self, wanted: Mapping[str, Sequence[str] | None], on_step: Callable[[str], None]) -> None:
        """Start one after the other; `on_step` is told before each. `wanted`: by server its ways; None: all of them.

        Raises:
            PeerError: none can be started.
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
            for contestant in found:
                on_step(f"warming up {contestant.name}")
                self._warm(contestant)
        if not self.contestants:
            raise nobody(self.skipped)

    def _warm(self, contestant: Contestant) -> None:
        try:
            with contestant.awake():
                for jobs in self._work:
                    warm_up(contestant.connect, jobs, self._turn_s)
        except SkylaneError as error:
            self.skipped[contestant.name] = str(error)
        else:
            self.contestants.append(contestant)


def nobody(skipped: Mapping[str, str]) -> PeerError:
    """That all were skipped, and why each."""
    return PeerError("nobody to measure: " + "; ".join(f"{who}: {why}" for who, why in skipped.items()))
