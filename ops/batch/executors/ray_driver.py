"""The driver process, which runs the pipeline on a cluster and passes its rows on to this process.

It is a process of its own because Ray ends the whole process, without an exception, when its cluster goes away.
"""

import multiprocessing
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

from ops.batch.executors.ray_rows import Row
from ops.batch.library import LibraryBag
from ops.batch.settings import BatchSettings
from ops.batch.steps import BatchError
from shared import registry
from shared.errors import SkylaneError

_PIPELINE = {"ray": registry.Entry("ops.batch.executors.ray_pipeline:results", "ray")}
_EXIT_TIMEOUT_S = 30.0  # Time for the end of a cluster that was started here.
_SPAWN = multiprocessing.get_context("spawn")


class RayDriver:
    """The driver process of one batch."""

    def __init__(self, bags: Sequence[LibraryBag], settings: BatchSettings) -> None:
        """Starts the process without waiting for the cluster."""
        self._address = settings.ray_address
        self.log = settings.out / "ray.log"  # Output of Ray, of this process and of the driver.
        self._folder = Path(tempfile.mkdtemp(prefix="skylane-ray-"))
        self._rows, theirs = _SPAWN.Pipe(duplex=False)
        job = (theirs, bags, settings, self._folder, self.log)
        self._process = _SPAWN.Process(target=_drive, args=job, name="skylane-ray", daemon=True)
        self._process.start()
        theirs.close()

    def rows(self) -> Iterator[Row]:
        """Yields the rows of the pipeline until all are done.

        Raises:
            BatchError: the cluster cannot be used, or has gone away.
        """
        while True:
            try:
                message: Row | str | None = self._rows.recv()
            except (EOFError, OSError) as error:
                raise self._lost() from error
            match message:
                case None:
                    return
                case str():
                    raise BatchError(message)
                case Row():
                    yield message

    def stop(self) -> None:
        """Ends the process, and the cluster if it was started here."""
        self._rows.close()
        self._process.terminate()
        self._process.join(_EXIT_TIMEOUT_S)
        self._process.kill()
        self._process.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _lost(self) -> BatchError:
        self._process.join(_EXIT_TIMEOUT_S)
        place = "that was started here" if self._address is None else f"at {self._address}"
        return BatchError(
            f"the Ray cluster {place} went away (the driver ended with code {self._process.exitcode}; its output is in "
            f"{self.log}): the finished bags are kept; run the same command again for the others"
        )


def _drive(
    connection: Connection, bags: Sequence[LibraryBag], settings: BatchSettings, folder: Path, log: Path
) -> None:
    """The body of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent ends this process.
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    with log.open("wb", buffering=0) as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    os.environ.update(_environment(settings, folder))
    try:
        with suppress(BrokenPipeError):  # The parent needs no more.
            try:
                results = registry.load("executor", _PIPELINE, "ray")
                with closing(results(bags, settings)) as rows:
                    for row in rows:
                        connection.send(row)
                connection.send(None)
            except SkylaneError as error:
                connection.send(str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(settings: BatchSettings, folder: Path) -> dict[str, str]:
    """Returns what Ray reads from the environment when it is imported."""
    if settings.ray_address is not None:
        return {"RAY_NUM_REDIS_GET_RETRIES": "1"}  # A port that is not Ray's is given up after a minute, not 15.
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_idle_worker_killing_time_threshold_ms": "60000",  # A new process for each bag would cost seconds.
        "RAY_worker_niceness": "0",  # By default, any other program of the machine goes before Ray's.
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "RAY_TMPDIR": str(folder),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # A cluster of one machine, which listens on the loopback interface.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
