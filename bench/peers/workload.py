"""The work of every server: the graph, the images with the masks of a direct call, and the closed loop that sends them.

For classifiers, the bytes of the scores are used as the mask: four bytes for the 32-bit score of each class, uint8 C×4.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count, cycle, islice
from pathlib import Path
from statistics import median

import numpy as np

from bench.peers.clients import Client, Job
from bench.peers.function import MASK
from cloud.models.loader import ModelLoader
from ops.processes.playback import PlaybackSettings, encoded_frames, model_inputs
from shared.errors import SkylaneError
from shared.imaging.frames import Pixels
from shared.inference.engine import Images
from shared.inference.model import Model
from shared.models.manifest import Placement
from shared.models.repository import Repository
from shared.task import task_named
from shared.threads import ThreadGroup

CODECS = ("jpeg", "raw")
SETTLING = 3  # Uncounted calls at the start of a turn, because the server was frozen.
_STEADY, _STEADY_RATIO, _WARM_UP_CALLS = 5, 1.1, 60
_LEAST = 4  # Minimum number of calls in a turn, however long they take.
_END_S = 120.0

Connect = Callable[[], Client]


def write_graph(models: Path, model: str, path: Path) -> None:
    """Writes the graph of Skylane's engine for one image, from uint8 1×H×W×3 to uint8 1×H×W, for `Function`.

    Raises:
        SkylaneError: the model is missing, is not a frozen graph, or neither segments nor classifies.
    """
    graphs = import_module("cloud.engines.tensorflow.graph_session")  # Imported here because it loads TensorFlow.
    formats = import_module("cloud.engines.tensorflow.graphdef")
    rewriting = import_module("cloud.engines.tensorflow.graph_rewriting")
    tf = import_module("cloud.engines.tensorflow.runtime").tf
    stored = Repository(models).find(model)
    manifest = stored.manifest
    if len(task_named(manifest.task).heads) != 1:
        raise SkylaneError(f"{model} is a model for {manifest.task}: choose one with a single output, such as a mask")
    frozen = formats.read_frozen_graph(stored.file(), manifest)
    joined = replace(frozen, graph=rewriting.defer_widening_layers(frozen.graph, frozen.output_tensors.values()))
    whole = graphs.assemble(joined, manifest, batch_size=1)
    (head,) = whole.heads.values()
    with whole.graph.as_default():
        answer = head if task_named(manifest.task).has_shape else tf.bitcast(head, tf.uint8)
        tf.identity(answer, MASK.partition(":")[0])
    path.write_bytes(whole.graph.as_graph_def().SerializeToString())


def by_codec(plan: PlaybackSettings, codecs: Iterable[str] = CODECS) -> dict[str, PlaybackSettings]:
    """Returns a plan with the same images for each codec."""
    return {codec: replace(plan, codec=codec) for codec in codecs}


def jobs(plans: Mapping[str, PlaybackSettings]) -> dict[str, Sequence[Job]]:
    """Returns the frames of each plan, by name, with the masks of direct calls of Skylane's engine.

    All plans must have the same model.

    Raises:
        SkylaneError: a source or the model cannot be used.
    """
    ((models, name),) = {(plan.models, plan.model) for plan in plans.values()}
    with ModelLoader(Repository(models), Placement(device="cpu"), engine="tensorflow").open(name) as model:
        return {
            each: [
                Job(frame, _truth(model, np.asarray(picture, np.uint8)))
                for frame, picture in zip(encoded_frames(plan, model), model_inputs(plan, model), strict=True)
            ]
            for each, plan in plans.items()
        }


def _truth(model: Model, picture: Images) -> Pixels:
    """Returns the mask of a direct call, or the bytes of its scores."""
    task = task_named(model.card.task)
    (head,) = task.heads
    (answer,) = model.infer(picture[None])[head]
    mask: Pixels = answer if task.has_shape else answer.view(np.uint8).reshape(len(answer), -1)
    return mask


@dataclass(frozen=True, slots=True)
class Taken:
    """Measurements of one call."""

    total_ms: float  # Time at the client, from the image bytes to the mask's pixels.
    inference_ms: float
    wrong_pixels: int  # Pixels of the mask (or bytes of the scores) that differ from the direct call.

    @property
    def overhead_ms(self) -> float:
        """Serving overhead in ms."""
        return self.total_ms - self.inference_ms


def warm_up(connect: Connect, jobs: Sequence[Job], patience_s: float) -> int:
    """Calls until the time is steady or a limit is reached; returns the number of calls.

    Raises:
        PeerError: a call failed.
    """
    took_ms: list[float] = []
    with closing(connect()) as client:
        for number in range(_WARM_UP_CALLS):
            took_ms.append(_timed(client, jobs[number % len(jobs)]).total_ms)
            if is_steady(took_ms) or (sum(took_ms) > 1e3 * patience_s and len(took_ms) >= _LEAST):
                break
    return len(took_ms)


def is_steady(took_ms: Sequence[float]) -> bool:
    """Whether the last calls were not clearly faster than the calls before them."""
    before, now = took_ms[-2 * _STEADY : -_STEADY], took_ms[-_STEADY:]
    return len(before) == _STEADY and median(before) < _STEADY_RATIO * median(now)


def one_in_flight(
    connect: Connect,
    jobs: Sequence[Job],
    frames: int,
    patience_s: float,
    *,
    settling: int = SETTLING,
    meter: AbstractContextManager[object] | None = None,
) -> list[Taken]:
    """Makes `frames` calls, one after the other over one connection; fewer if they take longer than `patience_s`.

    `settling` calls before them do not count. `meter` is entered after those and left after the last call.

    Raises:
        PeerError: a call failed.
    """
    with closing(connect()) as client:
        for job in islice(cycle(jobs), settling):
            _timed(client, job)
        taken: list[Taken] = []
        with meter or nullcontext():
            until_s = time.monotonic() + patience_s
            while len(taken) < frames and (len(taken) < _LEAST or time.monotonic() < until_s):
                taken.append(_timed(client, jobs[len(taken) % len(jobs)]))
    return taken


def many_at_a_time(
    connect: Connect, jobs: Sequence[Job], frames: int, clients: int, patience_s: float
) -> tuple[float, list[Taken]]:
    """Returns answers per second with `clients` clients, each with its own connection, and all calls.

    The first answer of each client is not counted. A slow server gets fewer calls, as in `one_in_flight`.

    Raises:
        PeerError: a call failed.
    """
    numbers = count()
    answered: list[tuple[float, Taken]] = []
    ended = threading.Event()
    until_s = time.monotonic() + patience_s

    def wanted() -> bool:
        return len(answered) < clients + _LEAST or time.monotonic() < until_s

    def call() -> None:
        with closing(connect()) as client:  # Created here, because some clients are bound to their thread.
            while not ended.is_set() and wanted() and (number := next(numbers)) < frames + clients:
                taken = _timed(client, jobs[number % len(jobs)])
                answered.append((time.perf_counter(), taken))

    threads = ThreadGroup(ended.set)
    for number in range(clients):
        threads.start(f"client-{number}", call)
    threads.join(_END_S)
    ends_s = sorted(end_s for end_s, _ in answered)
    return (len(ends_s) - clients) / (ends_s[-1] - ends_s[clients - 1]), [taken for _, taken in answered]


def _timed(client: Client, job: Job) -> Taken:
    begun_ns = time.perf_counter_ns()
    answer = client.ask(job)
    took_ns = time.perf_counter_ns() - begun_ns
    wrong = int(np.count_nonzero(answer.mask != job.mask))
    return Taken(took_ns / 1e6, answer.inference_ns / 1e6, wrong)
