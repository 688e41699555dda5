"""Runs the server of a peer."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from bench.peers.clients import PeerError
from bench.peers.rig.process_tree import ProcessTree

_LOOK_S = 0.2
_END_S = 20.0


class Server(AbstractContextManager["Server"]):
    """A server that runs until the block ends; then all its processes have ended."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> None:
        """Starts the server in `folder`, with `environment` added to this process's and its output in `log`.

        Raises:
            PeerError: the command cannot be run.
        """
        self._log = log
        with log.open("wb") as output:
            try:
                self._process = subprocess.Popen(
                    command,
                    cwd=folder,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise PeerError(f"{command[0]} cannot be run: {error.strerror}") from error
        self.tree = ProcessTree([self._process.pid])

    def wait(self, attempt: Callable[[], object], patience_s: float) -> None:
        """Waits until `attempt` raises no PeerError.

        Raises:
            PeerError: the server ended, or was not ready in time; the message has its last output.
        """
        until_s = time.monotonic() + patience_s
        pause = threading.Event()
        while True:
            try:
                attempt()
            except PeerError as error:
                if self._process.poll() is not None:
                    code = self._process.returncode
                    raise PeerError(f"the server ended with {code}: {self._last_words()}") from error
                if time.monotonic() > until_s:
                    raise PeerError(f"no answer within {patience_s:g} s: {error}") from error
            else:
                return
            self.tree.members()  # Records the members, to find them after their parent has ended.
            pause.wait(_LOOK_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tree.end(_END_S)
        self._process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{lines[-1].strip()} (all of it in {self._log})" if lines else "it said nothing"
