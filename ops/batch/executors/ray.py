"""The Ray executor: a cluster decodes and infers, and this process writes the results."""

import multiprocessing
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ops.batch.executor import BagOutcome, BagProgress
from ops.batch.frames import BagEnd, PreparedFrame, SegmentedFrame
from ops.batch.library import LibraryBag
from ops.batch.output.results import ResultWriter
from ops.batch.settings import BatchSettings
from ops.batch.steps import BatchError
from shared import registry
from shared.errors import SkylaneError
from shared.files import create_file

_PIPELINE = {"ray": registry.Entry("ops.batch.executors.ray_pipeline:results", "ray")}
_EXIT_TIMEOUT_S = 30.0  # Time for the end of a cluster that was started here.
_SPAWN = multiprocessing.get_context("spawn")
_SCHEMA = pa.schema(
    [
        ("bag", pa.int32()),
        ("position", pa.int32()),
        ("total", pa.int32()),
        ("kind", pa.string()),
        ("data", pa.large_binary()),
    ]
)


class RowKind(StrEnum):
    """The kinds of values in a row."""

    PREPARED = "prepared"
    SEGMENTED = "segmented"
    END = "end"
    REFUSAL = "refusal"  # The reason why the model cannot be loaded.


_TYPES: dict[str, Any] = {
    RowKind.PREPARED: PreparedFrame,
    RowKind.SEGMENTED: SegmentedFrame,
    RowKind.END: BagEnd,
    RowKind.REFUSAL: str,
}


@dataclass(frozen=True, slots=True)
class Row:
    """A value of a bag."""

    bag: int  # Position of the bag in the batch.
    position: int  # Position of the value among the frames and the end of its bag, from 0.
    total: int | None  # Frames of the bag by its index, if that says.
    kind: str
    data: bytes  # The value as MessagePack.

    def value(self) -> Any:
        """Returns the value, of the type that belongs to the kind."""
        return msgspec.msgpack.decode(self.data, type=_TYPES[self.kind], dec_hook=_array)

    def table(self) -> Any:
        """Returns the row as an Arrow table."""
        columns = ([self.bag], [self.position], [self.total], [self.kind], [self.data])
        return pa.table(dict(zip(_SCHEMA.names, columns, strict=True)), _SCHEMA)


def packed(value: Any) -> bytes:
    """Returns a value as MessagePack, for `Row.data`."""
    return msgspec.msgpack.encode(value, enc_hook=lambda image: (image.shape, image.data))


def rows(table: Any) -> Iterator[Row]:
    """Yields the rows of an Arrow table."""
    for record in table.to_pylist():
        yield Row(**record)


def _array(kind: Any, packed_image: Any) -> npt.NDArray[np.uint8]:
    del kind
    shape, pixels = packed_image
    return np.frombuffer(pixels, np.uint8).reshape(shape)


class RayExecutor:
    """Runs a batch on a Ray cluster, or on one that is started on this machine."""

    def run(
        self, bags: Sequence[LibraryBag], settings: BatchSettings, on_progress: Callable[[BagProgress], None]
    ) -> Generator[BagOutcome]:
        """See Executor."""
        unfinished = dict(enumerate(bags))
        started: dict[int, _StartedBag] = {}
        driver = RayDriver(bags, settings)
        try:
            for row in driver.rows():
                if row.kind == RowKind.REFUSAL:
                    raise BatchError(row.value())
                if row.bag not in unfinished:
                    continue  # The bag has failed.
                if row.bag not in started:
                    started[row.bag] = _StartedBag(bags[row.bag], settings)
                outcome = started[row.bag].add(row, on_progress)
                if outcome is not None:
                    del unfinished[row.bag], started[row.bag]
                    yield outcome
            for bag in unfinished.values():
                lost = f"Ray lost a part of it, because it ended its process again and again: see {driver.log}"
                yield BagOutcome(bag.name, error=lost)
        finally:
            driver.stop()
            for left in started.values():
                left.discard()


class _StartedBag:
    """Writes the results of a bag in order."""

    def __init__(self, bag: LibraryBag, settings: BatchSettings) -> None:
        self._bag = bag
        self._writer = ResultWriter(bag, settings)
        self._next = 0
        self._early: dict[int, Row] = {}  # Rows whose predecessors are missing, by position.

    def add(self, row: Row, on_progress: Callable[[BagProgress], None]) -> BagOutcome | None:
        """Writes the results that are next in order; returns the outcome of the bag at its end."""
        self._early[row.position] = row
        while (due := self._early.pop(self._next, None)) is not None:
            self._next += 1
            if due.kind == RowKind.END:
                return self._writer.finish(due.value())
            self._writer.write(due.value())
            if self._writer.failed:
                return self._writer.finish(BagEnd())
            on_progress(BagProgress(self._bag.name, self._writer.frames, due.total))
        return None

    def discard(self) -> None:
        """Deletes incomplete results."""
        self._writer.discard()


class RayDriver:
    """The driver process of one batch, which runs the pipeline on a cluster and passes its rows on to this process.

    It is a process of its own because Ray ends the whole process, without an exception, when its cluster goes away.
    """

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
    with create_file(log) as output:
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
    """Returns the environment variables that Ray reads when it is imported."""
    if settings.ray_address is not None:
        return {"RAY_NUM_REDIS_GET_RETRIES": "1"}  # A port that is not Ray's is given up after a minute, not 15.
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_idle_worker_killing_time_threshold_ms": "60000",  # A new process for each bag would cost seconds.
        "RAY_worker_niceness": "0",  # Ray's default lets every other program of the machine run first.
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
