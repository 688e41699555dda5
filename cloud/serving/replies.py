"""Replies: makes the result of an inferred frame; builds, sends, counts and logs the one reply that each frame gets.

Results are made while the next batch is inferred. If no frame waits for inference, the thread of the engine makes the result
of the last frame of a batch itself.
"""

import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from cloud.serving.latency_estimator import LatencyEstimator
from cloud.serving.request import Request, RequestErrors
from shared import clock
from shared.errors import SkylaneError
from shared.frame_reasons import reason_label
from shared.inference.engine import Outputs
from shared.inference.model import Model
from shared.logs import RateLimitedLogger, get_logger
from shared.messages.frame import ResultMessage, Status
from shared.messages.load import WorkerLoad
from shared.messages.model_card import ModelCard
from shared.recent_frames import RecentFrames
from shared.stages import Stage, Stamp, durations_ns
from shared.task import task_named
from shared.threads import BoundedQueue, Counts

_MAX_SESSIONS = 1024  # Known sessions of vehicles; beyond this limit, the least recent one is forgotten.
_LOG = get_logger("cloud")


class WorkerFrameLog:
    """Logs what happens to frames, with a rate limit per vehicle and status. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._joined = RateLimitedLogger(_LOG)
        self._refused = RateLimitedLogger(_LOG)

    def replied(self, request: Request, message: ResultMessage) -> None:
        """Logs the first reply to a session of a vehicle, and refusals."""
        frame_id = message.id
        session = (frame_id.vehicle, frame_id.session)
        with self._lock:
            is_new = session not in self._sessions
            self._sessions[session] = None
            self._sessions.move_to_end(session)
            if len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)
        if is_new:
            self._joined.info(session, "vehicle joined", vehicle=frame_id.vehicle, session=frame_id.session)
        if message.status is not Status.ANSWERED:
            self._refused.warning(
                (message.status, frame_id.vehicle),
                f"frame {message.status.value}",
                vehicle=frame_id.vehicle,
                camera=frame_id.camera,
                frame_id=str(frame_id),
                model=request.model,
                reason=message.reason,
            )

    def unreadable(self, request: Request, reason: str) -> None:
        """Logs a frame that got no reply because its id is unreadable."""
        self._refused.warning(
            ("unreadable", request.vehicle),
            "frame unreadable",
            vehicle=request.vehicle,
            camera=request.camera,
            model=request.model,
            reason=reason,
        )

    def ignored(self, reason: str, topic: str) -> None:
        """Logs a message without a reply; `reason` is a key of `Replier.ignored`."""
        self._refused.warning(("ignored", reason), "frame ignored", reason=reason, topic=topic)


class ReplyTooLargeError(SkylaneError):
    """A result exceeds the largest message of the transport, such as a broker, which would close the connection."""


class Replier:
    """Builds, sends and counts the replies of one worker. Thread-safe."""

    def __init__(
        self, worker: str, node: str, load_after: Callable[[Request], WorkerLoad | None] = lambda _: None
    ) -> None:
        """`node` is the name of this process in stamps. `load_after` returns the load that a reply reports."""
        self.on_batch: list[Callable[[ModelCard, int], None]] = []  # Called with the size of each inferred batch.
        self.stats = ServingStats()
        self.recent = RecentFrames()
        self.errors = RequestErrors()
        self.log = WorkerFrameLog()
        # Called after each reply; they return at once.
        self.on_replied: list[Callable[[Request, ResultMessage], None]] = [
            self.stats.add,
            self._add_recent,
            self.log.replied,
        ]
        self._worker = worker
        self._node = node
        self._load_after = load_after
        self._unreadable = Counts()
        self._ignored = Counts()

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of frames by the status of their reply; `unreadable` ones could get no reply."""
        return self.stats.counts | self._unreadable.by_name()

    @property
    def ignored(self) -> Mapping[str, int]:
        """Number of messages of the broker without a reply, by reason.

        `topic`: it names no vehicle and camera; `model`: this worker has never served it; `retained`: the broker had
        stored the message, and would deliver it at every connect; `refusals_full`: too many refusals are waiting.
        """
        return self._ignored.by_name()

    def ignore(self, reason: str, topic: str) -> None:
        """Counts and logs a message that gets no reply."""
        self._ignored.add(reason)
        self.log.ignored(reason, topic)

    def result(self, request: Request, card: ModelCard, result: Any) -> None:
        """Replies with a result.

        Raises:
            ReplyTooLargeError: the encoded result is larger than the request allows.
        """
        message = request.message
        assert message is not None
        task = task_named(card.task)
        data = task.encode(result, message.options.mask_codec)
        if len(data) > request.max_reply_bytes:
            raise ReplyTooLargeError(
                f"a {task.result_name} of {len(data)} bytes exceeds the limit of {request.max_reply_bytes} "
                "for a reply: ask for another mask codec or size, or for fewer outputs"
            )
        if request.batch_size > 1:
            data = bytes(data)  # A view would keep the results of the whole batch in memory.
        request.stamp(Stage.MASK_ENCODED)
        shape = (result.shape[0], result.shape[1]) if task.has_shape else None
        self._answer(request, card, shape=shape, codec=message.options.mask_codec, data=data)

    def outputs(self, request: Request, card: ModelCard, outputs: Outputs) -> None:
        """Replies with the raw outputs of the model; the message has all other fields of a reply.

        Raises:
            ReplyTooLargeError: the outputs are larger than the request allows.
        """
        assert request.message is not None
        size = sum(values.nbytes for values in outputs.values())
        if size > request.max_reply_bytes:
            raise ReplyTooLargeError(
                f"outputs of {size} bytes exceed the limit of {request.max_reply_bytes} for a reply: ask for fewer"
            )
        request.stamp(Stage.MASK_ENCODED)
        self._answer(request, card, outputs, codec=request.message.options.mask_codec)

    def refuse(self, request: Request, status: Status, reason: str) -> None:
        """Replies without a result; a frame without a readable id gets no reply, and is counted and logged."""
        if request.id is None:
            self._unreadable.add("unreadable")
            self.log.unreadable(request, reason)
            request.finish()
            return
        refusal = self._message(request, status, reason=reason[:500], model=request.model)
        try:
            request.reply(refusal)
        except Exception as error:  # noqa: BLE001  No other reply is possible.
            self.errors.record("reply", error)
        self._finish(request, refusal)

    def fail(self, request: Request, stage: str, error: Exception) -> None:
        """Records an unexpected exception of a stage and refuses its frame as `failed`."""
        self.errors.record(stage, error)
        self.refuse(request, Status.FAILED, f"internal error in {stage} ({type(error).__name__}): see the worker's log")

    def _answer(self, request: Request, card: ModelCard, *outputs: Outputs, **fields: Any) -> None:
        reply = self._message(
            request,
            Status.ANSWERED,
            model=card.name,
            model_version=card.version,
            model_sha256=card.sha256,
            engine=f"{card.engine} {card.precision}",
            task=card.task,
            **fields,
        )
        request.reply(reply, *outputs)
        self._finish(request, reply)

    def _message(self, request: Request, status: Status, **fields: Any) -> ResultMessage:
        assert request.id is not None
        message = request.message
        return ResultMessage(
            id=request.id,
            attempt=message.attempt if message else request.header.attempt,
            status=status,
            worker=self._worker,
            geometry=message.geometry if message else None,
            batch_size=request.batch_size,
            load=self._load_after(request),
            stamps=self._stamps(request),
            **fields,
        )

    def _stamps(self, request: Request) -> tuple[Stamp, ...]:
        """The stamps of the frame message, then those of this node; the REPLIED stamp is set now, before packing."""
        request.stamp(Stage.REPLIED)
        own = tuple(Stamp(stage, self._node, at_ns) for stage, at_ns in request.times.items())
        return (request.message.stamps if request.message else ()) + own

    def _finish(self, request: Request, reply: ResultMessage) -> None:
        for listener in self.on_replied:
            listener(request, reply)
        request.finish()

    def _add_recent(self, request: Request, reply: ResultMessage) -> None:
        self.recent.add(reply.status.value, _recent_times(request) if reply.status is Status.ANSWERED else {})


TRITON_STAGES = {  # The durations in Triton's statistics, and the stages that they consist of here.
    "queue": (Stage.DEQUEUED, Stage.BATCHED),
    "compute_input": (Stage.DECODED,),
    "compute_infer": (Stage.INFERRED,),
    "compute_output": (Stage.POSTPROCESSED, Stage.MASK_ENCODED),
}


def part_ns(durations: Mapping[Stage, int], part: str) -> int:
    """Returns the duration of one of TRITON_STAGES in nanoseconds."""
    return sum(durations.get(stage, 0) for stage in TRITON_STAGES[part])


def _recent_times(request: Request) -> dict[str, int]:
    """Returns the time that an answered frame waited, and that of its inference."""
    durations = durations_ns(request.own_times)
    return {"queue": part_ns(durations, "queue"), "inference": part_ns(durations, "compute_infer")}


_MAX_MODELS = 256  # Model names with a counter of refused frames; clients choose the names.


@dataclass(slots=True)
class ModelStats:
    """Statistics of one version of a model since the start of the worker."""

    answered: int = 0
    executions: float = 0.0  # Batches; a frame in a batch of n adds 1/n.
    stages_ns: Counter[Stage] = field(default_factory=Counter)  # Total duration over all answered frames.


class ServingStats:
    """Collects the statistics of all models from their replies. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: defaultdict[tuple[str, str], ModelStats] = defaultdict(ModelStats)
        self._refused: Counter[tuple[str, Status, str]] = Counter()

    def add(self, request: Request, reply: ResultMessage) -> None:
        """Adds a reply, which may be a refusal."""
        with self._lock:
            if reply.status is not Status.ANSWERED:
                names = {model for model, *_ in self._refused}
                is_counted = request.model in names or len(names) < _MAX_MODELS
                model = request.model if is_counted else ""
                self._refused[model, reply.status, reason_label(reply.reason)] += 1
                return
            stats = self._models[reply.model, reply.model_version]
            stats.answered += 1
            stats.executions += 1 / request.batch_size
            stats.stages_ns.update(durations_ns(request.own_times))

    @property
    def counts(self) -> dict[str, int]:
        """Number of frames by the status of their reply."""
        counts: Counter[str] = Counter()
        with self._lock:
            counts[Status.ANSWERED.value] += sum(stats.answered for stats in self._models.values())
            for (_, status, _), frames in self._refused.items():
                counts[status.value] += frames
        return dict(+counts)

    @property
    def models(self) -> Mapping[tuple[str, str], ModelStats]:
        """A copy of the statistics by model and version."""
        with self._lock:
            return deepcopy(dict(self._models))

    @property
    def refused(self) -> Mapping[tuple[str, Status, str], int]:
        """Number of refused frames by model, status and `reason_label`; the model "" stands for all names beyond the limit."""
        with self._lock:
            return dict(self._refused)


_BACKLOG = 16


class Postprocessor:
    """Makes the result of each inferred frame, encodes it and sends the reply."""

    def __init__(self, replier: Replier, threads: int = 1) -> None:
        """`threads` is the number of postprocessing threads."""
        self.latency = LatencyEstimator()  # The time from the end of inference to the reply.
        self._work = LatencyEstimator()  # The part of it without the wait for a thread.
        self._replier = replier
        self._threads = threads
        self._handover: BoundedQueue[tuple[Request, Model]] = BoundedQueue(_BACKLOG)

    @property
    def spacing_ns(self) -> int:
        """The typical time between two results if all threads are busy."""
        return self._work.median_ns // self._threads

    @property
    def expected_ns(self) -> int:
        """The expected time until the reply to a frame that is inferred now, behind the results that wait."""
        return self._handover.depth * self.spacing_ns + self._work.median_ns

    def put(self, request: Request, model: Model) -> None:
        """Queues an inferred frame for a postprocessing thread; blocks while the queue is full."""
        self._handover.put((request, model))

    def close(self) -> None:
        """Lets the threads end once the queue is empty."""
        self._handover.close()

    def run(self) -> None:
        """Processes frames until closed; the body of a postprocessing thread."""
        with self._handover.reader() as get:
            while (item := get()) is not None:
                self.process(*item)

    def process(self, request: Request, model: Model) -> None:
        """Processes an inferred frame in the calling thread; an error refuses the frame and is not raised."""
        assert request.message is not None
        assert request.outputs is not None
        begin_ns = clock.now_ns()
        try:
            if request.wants_outputs:
                request.stamp(Stage.POSTPROCESSED)
                self._replier.outputs(request, model.card, request.outputs)
            else:
                result = task_named(model.card.task).result(request.outputs, request.message, model.manifest)
                request.outputs = None
                request.stamp(Stage.POSTPROCESSED)
                self._replier.result(request, model.card, result)
            self.latency.add(request.times[Stage.REPLIED] - request.times[Stage.INFERRED])
            self._work.add(request.times[Stage.REPLIED] - begin_ns)
        except SkylaneError as error:
            self._replier.refuse(request, Status.REJECTED, str(error))
        except Exception as error:  # noqa: BLE001  The frame fails, the worker goes on.
            self._replier.fail(request, "postprocessing", error)
