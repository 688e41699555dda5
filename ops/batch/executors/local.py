"""The local executor: processes of this machine, each of which takes whole bags."""

import multiprocessing
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import psutil

from ops.batch.executor import BagOutcome, BagProgress
from ops.batch.frames import BagEnd, PreparedFrame
from ops.batch.library import LibraryBag
from ops.batch.output.results import ResultWriter
from ops.batch.settings import BatchSettings
from ops.batch.steps import BatchError, FrameInference, decode_bag
from shared.errors import SkylaneError
from shared.imaging.opencv import cv2
from shared.resources.usage import gpus
from shared.runtime import memory
from shared.runtime.machine import usable_cores
from shared.runtime.processes import on_termination_signals
from shared.threads import BoundedQueue

_MAX_ATTEMPTS = 3  # Attempts at a bag whose process dies: it is done again at most twice.
_MAX_EARLY_DEATHS = 3  # Processes that may end in a row before they have loaded the model.
_AHEAD = 4  # Decoded frames that may wait for the model.
_PROCESS_BYTES = 1 << 30  # Memory that a process is expected to need: TensorFlow, the model and some frames.
_SPAWN = multiprocessing.get_context("spawn")  # A fork would copy the locks of this process's libraries.


class LocalExecutor:
    """Runs a batch in processes of this machine."""

    def run(
        self, bags: Sequence[LibraryBag], settings: BatchSettings, on_progress: Callable[[BagProgress], None]
    ) -> Generator[BagOutcome]:
        """See Executor."""
        pool = _Pool(bags, settings, on_progress)
        try:
            yield from pool.outcomes()
        finally:
            pool.stop()


def process_count(settings: BatchSettings) -> int:
    """Returns the number of processes: as set, or what cores, threads and free memory allow; one for a GPU."""
    if settings.processes is not None:
        return settings.processes
    with gpus() as found:
        if settings.device.startswith("gpu") or (settings.device == "auto" and found):
            return 1
    by_memory = psutil.virtual_memory().available // _PROCESS_BYTES
    return max(1, min(usable_cores() // settings.threads, by_memory))


@dataclass(frozen=True, slots=True)
class _Ready:
    """A process has loaded the model."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A process cannot load the model; other processes could not either."""

    reason: str


_Message = _Ready | _Refusal | BagProgress | BagOutcome


@dataclass(slots=True)
class _BagProcess:
    """A process and its current bag."""

    process: SpawnProcess
    connection: Connection
    bag: LibraryBag | None = None
    is_ready: bool = False


class _Pool:
    """The processes of one batch."""

    def __init__(
        self, bags: Sequence[LibraryBag], settings: BatchSettings, on_progress: Callable[[BagProgress], None]
    ) -> None:
        self._settings = settings
        self._on_progress = on_progress
        self._waiting = deque(bags)
        self._deaths: Counter[LibraryBag] = Counter()
        self._early_deaths = 0
        self._processes: list[_BagProcess] = []
        self._count = min(process_count(settings), len(bags))

    def outcomes(self) -> Iterator[BagOutcome]:
        while self._waiting or any(member.bag for member in self._processes):
            self._assign()
            ready = wait([member.connection for member in self._processes])
            for member in [member for member in self._processes if member.connection in ready]:
                outcome = self._handle(member)
                if outcome is not None:
                    yield outcome

    def stop(self) -> None:
        for member in self._processes:
            member.process.kill()
        for member in self._processes:
            member.process.join()
            member.connection.close()
        self._processes = []

    def _assign(self) -> None:
        """Passes waiting bags to idle processes, and starts processes for the remaining bags."""
        for member in self._processes:
            if member.is_ready and member.bag is None and self._waiting:
                member.bag = self._waiting.popleft()
                with suppress(OSError):  # The process has died: its end is read next.
                    member.connection.send(member.bag)
        loading = sum(not member.is_ready for member in self._processes)
        while len(self._processes) < self._count and loading < len(self._waiting):
            self._start()
            loading += 1

    def _start(self) -> None:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_work, args=(theirs, self._settings), name="skylane-batch", daemon=True)
        process.start()
        theirs.close()
        self._processes.append(_BagProcess(process, ours))

    def _handle(self, member: _BagProcess) -> BagOutcome | None:
        """Reads one message of a process, or handles its death; returns the outcome of a bag, if there is one."""
        try:
            message: _Message = member.connection.recv()
        except (EOFError, OSError):
            return self._handle_death(member)
        match message:
            case _Refusal():
                raise BatchError(message.reason)
            case _Ready():
                member.is_ready = True
                self._early_deaths = 0
            case BagProgress():
                self._on_progress(message)
            case BagOutcome():
                member.bag = None
                return message
        return None

    def _handle_death(self, member: _BagProcess) -> BagOutcome | None:
        member.process.join()
        member.connection.close()
        self._processes.remove(member)
        code = member.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        how += ": give fewer --processes if memory is short" if code == -signal.SIGKILL else ""
        if not member.is_ready:
            self._early_deaths += 1
            if self._early_deaths >= _MAX_EARLY_DEATHS:
                raise BatchError(
                    f"{self._early_deaths} processes in a row ended while they loaded the model; the last one {how}"
                )
        bag = member.bag
        if bag is None:
            return None
        self._deaths[bag] += 1
        if self._deaths[bag] < _MAX_ATTEMPTS:
            self._waiting.appendleft(bag)
            self._on_progress(BagProgress(bag.name, 0, None))
            return None
        return BagOutcome(bag.name, error=f"{_MAX_ATTEMPTS} processes that had it have ended; the last one {how}")


def _work(connection: Connection, settings: BatchSettings) -> None:
    """The body of a process: processes the bags that it receives, until the connection is closed."""
    on_termination_signals(signal.SIG_IGN)  # The parent, which receives them too, kills this process.
    memory.retain()
    cv2.setNumThreads(settings.threads)
    with suppress(EOFError, OSError):  # The parent has ended.
        try:
            model = FrameInference(settings)
        except SkylaneError as error:
            connection.send(_Refusal(str(error)))
            return
        with closing(model):
            connection.send(_Ready())
            while True:
                connection.send(_do(connection.recv(), settings, model, connection.send))


def _do(
    bag: LibraryBag, settings: BatchSettings, model: FrameInference, send: Callable[[BagProgress], None]
) -> BagOutcome:
    """Processes one bag: a thread decodes ahead, while this thread infers and writes."""
    decoded: BoundedQueue[PreparedFrame | BagEnd] = BoundedQueue(_AHEAD)
    stopped = threading.Event()

    def decode() -> None:
        for item in decode_bag(bag, settings):
            if stopped.is_set():
                return
            decoded.put(item)

    thread = threading.Thread(target=decode, name="decode", daemon=True)
    writer = ResultWriter(bag, settings)
    thread.start()
    try:
        with decoded.reader() as get:
            while isinstance(item := get(), PreparedFrame):
                try:
                    writer.write(model.run(item))
                except SkylaneError as error:
                    writer.fail(str(error))
                if writer.failed:
                    return writer.finish(BagEnd())
                send(BagProgress(bag.name, writer.frames, item.total))
        assert isinstance(item, BagEnd)
        return writer.finish(item)
    finally:
        stopped.set()
        thread.join()
        writer.discard()
