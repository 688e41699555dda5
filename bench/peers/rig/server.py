"""Runs the server of a peer."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Self

from bench.peers.clients.client import Client, PeerError, check_ready
from bench.peers.rig.process_tree import ProcessTree
from bench.peers.rig.workload import Job

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

    def await_answer(self, connect: Callable[[], Client], job: Job, patience_s: float) -> None:
        """Waits until a client gets an answer.

        Raises:
            PeerError: the server ended, or did not answer in time; the message has its last output.
        """
        self._await(partial(_ask_once, connect, job), patience_s)

    def await_ready(self, port: int, path: str, word: str, patience_s: float) -> None:
        """Waits until the server reports its readiness (`check_ready`), without any inference.

        Raises:
            PeerError: as `await_answer`.
        """
        self._await(partial(check_ready, port, path, word), patience_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tree.end(_END_S)
        self._process.wait()

    def _await(self, attempt: Callable[[], None], patience_s: float) -> None:
        until_s = time.monotonic() + patience_s
        pause = threading.Event()
        while True:
            try:
                attempt()
            except PeerError as error:
                if self._process.poll() is not None:
                    raise PeerError(
                        f"the server ended with {self._process.returncode}: {self._last_words()}"
                    ) from error
                if time.monotonic() > until_s:
                    raise PeerError(f"no answer within {patience_s:g} s: {error}") from error
            else:
                return
            self.tree.members()  # Records the members, to find them after their parent has ended.
            pause.wait(_LOOK_S)

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{lines[-1].strip()} (all of it in {self._log})" if lines else "it said nothing"


def _ask_once(connect: Callable[[], Client], job: Job) -> None:
    with closing(connect()) as client:
        client.ask(job)
