"""The pipeline on a Ray cluster: tasks decode bags, and a pool of actors runs the model.

Ray Data moves blocks of frames between the two, and pauses decoding while the actors are behind. It runs the tasks of a
machine that is lost again on the others.
"""

import logging
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import ray
import ray.data
from ray.exceptions import RayError

from ops.batch.executors.local import process_count
from ops.batch.executors.ray import Row, RowKind, packed, rows
from ops.batch.frames import BagEnd
from ops.batch.library import LibraryBag
from ops.batch.settings import BatchSettings
from ops.batch.steps import BatchError, FrameInference, decode_bag
from shared.errors import SkylaneError
from shared.network.endpoint import Endpoint
from shared.runtime import memory

_BLOCK_BYTES = 4 << 20  # Frames that move together. Ray's default of 128 MiB would hold whole bags.
_MAX_DEATHS = 3  # About so many actors die at one frame before its bag fails.
_DECODER_SHARE = 0.1  # Of the cores that belong to an actor: a decoder next to it uses what the model leaves.


@dataclass(frozen=True, slots=True)
class Pools:
    """The sizes of the two pools, and what Ray reserves for each of their processes."""

    decoders: int
    decoder_cpus: float
    actors: int
    actor_cpus: float
    actor_gpus: int


def pools(settings: BatchSettings, nodes: Sequence[Mapping[str, float]]) -> Pools:
    """Returns the pools for a cluster whose nodes have these resources: an actor for each GPU, or on all cores.

    Raises:
        BatchError: the settings ask for a GPU and there is none, or no node has enough cores.
    """
    most = settings.processes or sys.maxsize
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    if gpus and settings.device != "cpu":
        return Pools(max(1, int(sum(node.get("CPU", 0) for node in nodes))), 1, min(gpus, most), 0, 1)
    if settings.device.startswith("gpu"):
        raise BatchError(f"device {settings.device!r}: no node of the Ray cluster has a GPU: use --device cpu")
    actors = min(sum(int(node.get("CPU", 0)) // settings.threads for node in nodes), most)
    if not actors:
        raise BatchError(f"no node of the Ray cluster has {settings.threads} cores: give fewer --threads")
    share = settings.threads * _DECODER_SHARE
    return Pools(actors, share, actors, settings.threads - share, 0)


def results(bags: Sequence[LibraryBag], settings: BatchSettings) -> Iterator[Row]:
    """Yields a row for each result, each end of a bag and a refusal of the model, in any order; lost parts give none.

    Raises:
        BatchError: there is no such cluster, it fails as a whole, or see `pools`.
    """
    with connected(settings) as nodes:
        try:
            yield from _run(bags, settings, pools(settings, nodes))
        except RayError as error:
            raise BatchError(f"the Ray cluster has failed: {str(error).strip().splitlines()[-1]}") from error


def _run(bags: Sequence[LibraryBag], settings: BatchSettings, sizes: Pools) -> Iterator[Row]:
    _configure()
    deaths = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(DeathCounter).remote()
    listed = [
        {"bag": index, "name": bag.name, "path": str(bag.path), "size_bytes": bag.size_bytes, "mtime_ns": bag.mtime_ns}
        for index, bag in enumerate(bags)
    ]
    frames = ray.data.from_items(listed, override_num_blocks=len(listed)).map_batches(
        _decode,
        fn_args=(settings,),
        batch_size=1,
        batch_format="pyarrow",
        compute=ray.data.TaskPoolStrategy(size=sizes.decoders),
        num_cpus=sizes.decoder_cpus,
    )
    segmented = frames.map_batches(
        _Inference,
        fn_constructor_args=(settings, deaths),
        batch_size=1,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=sizes.actors),
        num_cpus=sizes.actor_cpus,
        num_gpus=sizes.actor_gpus,
    )
    for block in segmented.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield from rows(block)


def _configure() -> None:
    context = ray.data.DataContext.get_current()
    context.target_max_block_size = _BLOCK_BYTES
    context.max_errored_blocks = -1  # A bag that ends its decoder fails; the others go on.
    context.enable_progress_bars = False
    context.memory_usage_poll_interval_s = None  # Else each block would cost a walk over the memory map of its process.


def _decode(table: Any, settings: BatchSettings) -> Iterator[Any]:
    """Decodes the bag of a table with one row; runs on any node."""
    memory.retain()
    (listed,) = table.to_pylist()
    index, path = listed.pop("bag"), Path(listed.pop("path"))
    for position, item in enumerate(decode_bag(LibraryBag(path=path, **listed), settings)):
        if isinstance(item, BagEnd):
            yield Row(index, position, None, RowKind.END, packed(item)).table()
        else:
            yield Row(index, position, item.total, RowKind.PREPARED, packed(item)).table()


class DeathCounter:
    """Counts the deaths of other actors by frame. Ray itself would repeat a frame that kills its actor without end."""

    def __init__(self) -> None:
        self._frames: dict[str, tuple[int, int]] = {}  # The frame that each actor infers.
        self._deaths: Counter[tuple[int, int]] = Counter()

    def restarted(self, actor: str) -> None:
        """Records that an actor has died and is started again."""
        frame = self._frames.pop(actor, None)
        if frame is not None:
            self._deaths[frame] += 1

    def begin(self, actor: str, frame: tuple[int, int]) -> int:
        """Records that an actor begins a frame; returns how many actors died at that frame."""
        self._frames[actor] = frame
        return self._deaths[frame]


class _Inference:
    """The model in an actor on any node."""

    def __init__(self, settings: BatchSettings, deaths: Any) -> None:
        memory.retain()
        context = ray.get_runtime_context()
        self._name = context.get_actor_id()
        # The first death is not counted, so that only restarted actors ask before each frame.
        self._deaths = deaths if context.was_current_actor_reconstructed else None
        if self._deaths is not None:
            ray.get(self._deaths.restarted.remote(self._name))
        if settings.device.startswith("gpu"):
            settings = settings.model_copy(update={"device": "gpu"})  # Ray shows an actor only its own GPU.
        self._model: FrameInference | None = None
        self._refusal = ""
        try:
            self._model = FrameInference(settings)
        except SkylaneError as error:
            self._refusal = str(error)  # Ray would wrap an exception in pages of its traceback.

    def __call__(self, table: Any) -> Any:
        """Replaces prepared frames by their results; passes the end of a bag on."""
        return pa.concat_tables([self._result(row).table() for row in rows(table)])

    def _result(self, row: Row) -> Row:
        if self._model is None:
            return replace(row, kind=RowKind.REFUSAL, data=packed(self._refusal))
        if row.kind != RowKind.PREPARED:
            return row
        try:
            self._check(row)
            return replace(row, kind=RowKind.SEGMENTED, data=packed(self._model.run(row.value())))
        except SkylaneError as error:
            return replace(row, kind=RowKind.END, data=packed(BagEnd(error=str(error))))

    def _check(self, row: Row) -> None:
        if self._deaths is None:
            return
        counted = ray.get(self._deaths.begin.remote(self._name, (row.bag, row.position)))
        if counted >= _MAX_DEATHS - 1:
            raise BatchError(
                f"the process of the model died {_MAX_DEATHS} times at frame {row.position}: if memory is short, give fewer "
                "--processes"
            )


_STORE_BYTES = 128 << 20  # Frames on their way to an actor, for each actor.
_CONNECT_TIMEOUT_S = 10.0
_STORE_SHARE = 0.25  # Largest share of the free memory.


@contextmanager
def connected(settings: BatchSettings) -> Iterator[Sequence[Mapping[str, float]]]:
    """Connects this process to the cluster of the settings, and yields the resources of each node.

    Without an address, a cluster of this machine is started, and ended with the connection.

    Raises:
        SkylaneError: there is no such cluster, or it has other versions of Ray or Python.
    """
    address = settings.ray_address
    try:
        if address is None:
            _start(settings)
        else:
            _connect(Endpoint.parse(address))
    except (OSError, RuntimeError, ValueError, RayError) as error:
        place = "cannot be started here" if address is None else f"at {address} cannot be used"
        raise BatchError(f"a Ray cluster {place}: {' '.join(str(error).split())}") from error
    try:
        yield [node["Resources"] for node in ray.nodes() if node["Alive"]]
    finally:
        ray.shutdown()


def _connect(address: Endpoint) -> None:
    with socket.create_connection((address.host, address.port), _CONNECT_TIMEOUT_S):  # Ray itself tries for minutes.
        pass
    ray.init(str(address), log_to_driver=False, logging_level=logging.WARNING)


def _start(settings: BatchSettings) -> None:
    processes = process_count(settings)
    ray.init(
        "local",
        num_cpus=processes * settings.threads,
        object_store_memory=min(processes * _STORE_BYTES, int(psutil.virtual_memory().available * _STORE_SHARE)),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
