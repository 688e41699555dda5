"""Who is measured: a way to a server that runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.peers.clients.client import Client
from bench.peers.rig.process_tree import ProcessTree


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to a server that runs."""

    server: str  # A name of NAMES.
    way: str
    connect: Callable[[], Client]
    tree: ProcessTree
    over_tcp: bool = True
    is_floor: bool = False  # As of a Peer.

    @property
    def name(self) -> str:
        """Such as "triton grpc"."""
        return f"{self.server} {self.way}"

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Its server runs within the block, and is stopped after it."""
        self.tree.thaw()
        try:
            yield
        finally:
            self.tree.freeze()
