"""Spreading pictures over nodes by load: whoever has a free place takes the next one."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edge.upload.client import Caller, ImageRefusedError, Told, WorkerBusyError, WorkerLostError
from shared.errors import SkylaneError
from shared.runtime.threads import ThreadGroup

_MOST_ATTEMPTS = 3  # A picture that three nodes went away with may be why.
_PATIENCE = 120  # How many times in a row a node may say that it is busy before it counts as lost.
_JOIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a picture."""

    picture: Path
    node: str  # That answered it, or had it last; empty: none had it.
    told: Told | None
    fault: str = ""


class Spread:
    """Gives each picture to a node with a free place; one that a node goes away with goes to another."""

    def __init__(self, pictures: Iterable[Path], on_ended: Callable[[Ended], None], *, rest_s: float = 0.5) -> None:
        """`on_ended` hears of each picture, one at a time. `rest_s`: the pause after a node said that it is busy."""
        self._waiting: deque[tuple[Path, int]] = deque((picture, 0) for picture in pictures)
        self._on_ended = on_ended
        self._rest_s = rest_s
        self._condition = threading.Condition()
        self._under_way = 0
        self._stopped = False
        self._is_deaf = False  # Whoever hears of pictures has failed, and is told no more.
        self._lost: dict[str, str] = {}
        self._threads = ThreadGroup(self.stop)

    @property
    def lost(self) -> Mapping[str, str]:
        """The nodes that went away, and why."""
        return dict(self._lost)

    def run(self, nodes: Mapping[str, Sequence[Callable[[], Caller]]]) -> None:
        """Send all; `nodes`: by address, how to make a caller for each of its places. Returns when all have ended."""
        for node, places in nodes.items():
            for number, opened in enumerate(places):
                self._threads.start(f"{node} {number}", partial(self._serve, node, opened))
        self._threads.join(_JOIN_S * (1 + len(self._waiting)))
        while self._waiting:
            self._on_ended(Ended(self._waiting.popleft()[0], "", None, "no node is left"))

    def is_over(self) -> bool:
        """Whether nothing is left for a node that comes now."""
        with self._condition:
            return self._stopped or not (self._waiting or self._under_way)

    def stop(self) -> None:
        """Send no more."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def _serve(self, node: str, opened: Callable[[], Caller]) -> None:
        """Ask a node as long as it answers; the body of a thread."""
        try:
            caller = opened()
        except WorkerLostError as error:
            self._lose(node, error)
            return
        rests = 0
        try:
            while (taken := self._take(node)) is not None:
                try:
                    self._ask(node, caller, *taken, is_last_time=rests >= _PATIENCE)
                    rests = 0
                except WorkerBusyError:
                    rests += 1
                    self._rest()
        finally:
            caller.close()

    def _ask(self, node: str, caller: Caller, picture: Path, attempts: int, *, is_last_time: bool) -> None:
        """Ask for one picture; where the node says nothing of it, it waits for the next place.

        Raises:
            WorkerBusyError: the node may be asked again later. `is_last_time`: it is lost instead.
        """
        ended: Ended | None = None
        lost: SkylaneError | None = None
        busy: WorkerBusyError | None = None
        try:
            ended = Ended(picture, node, caller.ask(picture))
        except WorkerBusyError as error:
            busy, lost = (None, error) if is_last_time else (error, None)
        except WorkerLostError as error:
            lost, attempts = error, attempts + 1
            if attempts >= _MOST_ATTEMPTS:
                ended = Ended(
                    picture, node, None, f"{_MOST_ATTEMPTS} nodes went away with it, the last because: {error}"
                )
        except (ImageRefusedError, SkylaneError, OSError) as error:
            ended = Ended(picture, node, None, str(error))
        with self._condition:
            self._under_way -= 1
            if (
                lost is not None
            ):  # Before its picture can be taken: by another place at the same node it would be lost too.
                self._lost.setdefault(node, str(lost))
            if ended is None:
                self._waiting.appendleft((picture, attempts))
            else:
                self._tell(ended)
            self._condition.notify_all()
        if busy is not None:
            raise busy

    def _tell(self, ended: Ended) -> None:
        if self._is_deaf:
            return
        self._is_deaf = True
        self._on_ended(ended)
        self._is_deaf = False

    def _rest(self) -> None:
        """Leave a busy node alone for a moment; the others work."""
        with self._condition:
            self._condition.wait_for(lambda: self._stopped, self._rest_s)

    def _take(self, node: str) -> tuple[Path, int] | None:
        """The next picture; None when all have ended, or the node is lost."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._stopped or node in self._lost or self._waiting or not self._under_way
            )
            if self._stopped or node in self._lost or not self._waiting:
                return None
            self._under_way += 1
            return self._waiting.popleft()

    def _lose(self, node: str, error: WorkerLostError) -> None:
        with self._condition:
            self._lost.setdefault(node, str(error))
            self._condition.notify_all()
