"""TransportEvents: what the bus calls back. It connects before there is a node to be told."""

import threading
from collections.abc import Callable

from edge.node import EdgeNode
from shared.errors import SkylaneError


class TransportEvents:
    """Passes on what the network thread finds, and keeps what comes before there is anybody to hear it."""

    def __init__(self) -> None:
        self.reconnected: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._node: EdgeNode | None = None
        self._early: list[tuple[Callable[[EdgeNode], None], BaseException]] = []

    def attach(self, node: EdgeNode) -> None:
        """There is a node now: it is told what went wrong before, and all that will."""
        with self._lock:
            self._node = node
            early, self._early = self._early, []
        for tell, _ in early:
            tell(node)

    def check(self) -> None:
        """Raise what went wrong while there is no node, if anything did."""
        with self._lock:
            if self._early:
                raise self._early[0][1]

    def connected(self) -> None:
        """The bus has connected, for the first time or again."""
        self.reconnected()

    def fault(self, error: BaseException) -> None:
        """A handler raised."""
        self._tell(lambda node: node.fault(error), error)

    def give_up(self, reason: SkylaneError) -> None:
        """The run must end, and in order."""
        self._tell(lambda node: node.end(reason), reason)

    def _tell(self, tell: Callable[[EdgeNode], None], error: BaseException) -> None:
        with self._lock:
            node = self._node
            if node is None:
                self._early.append((tell, error))
                return
        tell(node)
