"""The cloud node, a worker: connects its frontends, queue, decoders, batchers and postprocessing."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloud.frontends.clock_responder import ClockResponder
from cloud.frontends.control import Control
from cloud.frontends.mqtt import MqttFrontend
from cloud.gateway.common.auth import Authenticator
from cloud.gateway.context import WorkerContext
from cloud.gateway.gateway import Gateway
from cloud.gateway.settings import GatewaySettings
from cloud.gateway.submission import GatewayFrontend
from cloud.models.loader import ModelLoader
from cloud.models.model import Model
from cloud.models.model_swap import ModelSwap
from cloud.serving.admission import Admission
from cloud.serving.batching import Batcher
from cloud.serving.circuit_breaker import CircuitBreaker
from cloud.serving.decoding import Decoder
from cloud.serving.postprocessing import Postprocessor
from cloud.serving.replies import Replier
from cloud.serving.served_models import ServedModel, ServedModels
from cloud.serving.submission import Submission
from shared.errors import SkylaneError
from shared.imaging.image_codecs import ImageLimits
from shared.logs import get_logger
from shared.messages import topics
from shared.mqtt.bus import Bus
from shared.runtime.health_file import HealthFile
from shared.runtime.threads import ThreadGroup

DRAIN_S = 30.0
_LOG = get_logger("cloud")

PipelineStage = tuple[Callable[[], None], Sequence[threading.Thread]]  # Its close function and its threads.


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of a worker."""

    worker: str
    session: str
    group: str = topics.GROUP
    qos: int = topics.FRAMES.qos
    max_frames: int = 64  # Waiting frames; further ones are refused as `overloaded`.
    max_bytes: int = 256 << 20  # Total size of waiting frames.
    max_pixels: int = 1 << 25  # Per image.
    decoders: int = 1  # Threads.
    encoders: int = 1  # Postprocessing threads.
    max_wait_ms: float = 0.0  # The longest wait of a batch for more frames.
    takes_control: bool = True  # True if operators can load and unload models over the broker.
    operators: tuple[str, ...] = ()  # Names of these operators; empty: all that the broker admits.
    gateway: GatewaySettings | None = None  # None: frames arrive only over the broker.
    drain_s: float = DRAIN_S  # The longest wait for each stage when the worker stops.
    health_file: Path | None = None

    @property
    def node(self) -> str:
        """The name of this process in stamps."""
        return f"cloud/{self.worker}/{self.session}"


class CloudNode:
    """A worker that serves frames until it is stopped."""

    def __init__(self, models: Sequence[Model], settings: WorkerSettings, *, loader: ModelLoader | None = None) -> None:
        """Builds a worker that serves `models` from the start.

        With a `loader`, the node closes models that it no longer serves, and operators can load others. Without one, the
        caller closes the models.
        """
        self._settings = settings
        self._loader = loader
        self._stopped = threading.Event()
        self._stop_reason: SkylaneError | None = None
        self._threads = ThreadGroup(self._stopped.set)
        self._replier = Replier(settings.worker, settings.node)
        self._admission = Admission(settings.max_frames, settings.max_bytes)
        self._postprocessor = Postprocessor(self._replier)
        self._circuit_breaker = CircuitBreaker()
        self.submission = Submission(self._admission, self._circuit_breaker)
        self._health = HealthFile(settings.health_file)
        self._models = models
        self.served_models = ServedModels()
        self._mqtt = MqttFrontend(
            self.submission,
            self._replier,
            self.served_models,
            worker=settings.worker,
            session=settings.session,
            group=settings.group,
            qos=settings.qos,
            give_up=self.end,
        )
        self.door = GatewayFrontend(self.submission, self._replier, self.served_models, session=settings.session)
        model_swap = ModelSwap(
            self.served_models,
            (self._mqtt, self.door),
            self.submission,
            self.start_serving,
            loader=self._loader,
            is_stopping=self._stopped.is_set,
        )
        self._control = (
            Control(settings.worker, self.served_models, model_swap, settings.operators, errors=self._replier.errors)
            if settings.takes_control
            else None
        )
        self._clock_responder = ClockResponder(settings.worker, settings.node)
        self._gateway: Gateway | None = None

    @property
    def ports(self) -> Mapping[str, int]:
        """The ports of the gateway after `bind`, by `http` and `grpc`."""
        return self._gateway.ports if self._gateway else {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of frames by the status of their reply, and of ignored frames, probes and control requests."""
        return {**self._replier.counts, **self._ignored()}

    @property
    def engine_processes(self) -> Mapping[str, int]:
        """The current process ids of isolated engines, by `<model>-<version>`."""
        pids = {"-".join(served.key): served.model.pid for served in self.served_models.all}
        return {name: pid for name, pid in pids.items() if pid is not None}

    def fault(self, error: BaseException) -> None:
        """Ends the node because a callback of the bus raised an exception."""
        self._threads.fault(error)

    def announce(self) -> None:
        """Repeats the announcement of the served models after a reconnect."""
        self._mqtt.announce()

    def end(self, reason: SkylaneError) -> None:
        """Drains and ends the node; `serve` then raises `reason`. Thread-safe."""
        self._stop_reason = reason
        self._stopped.set()

    def stop(self) -> None:
        """Drains and ends the node; may be called by a signal handler."""
        self._stopped.set()

    def bind(self) -> None:
        """Binds the ports of the gateway; calls are served once `serve` runs.

        Raises:
            SkylaneError: an address cannot be bound, or a library is missing.
        """
        settings = self._settings
        if settings.gateway is None or self._gateway is not None:
            return
        context = WorkerContext(
            name=settings.worker,
            submission=self.door,
            authenticator=Authenticator.from_file(settings.gateway.tokens),
            clock_responder=self._clock_responder,
            control=self._control,
            settings=settings.gateway,
            image_limits=ImageLimits(max_pixels=settings.max_pixels),
            model_stats=self._replier.stats,
            request_errors=self._replier.errors,
            ignored_messages=self._ignored,
        )
        self._gateway = Gateway(context, self._threads.fault)

    def add(self, models: Sequence[Model]) -> None:
        """Adds models that are served from the start; must be called before `serve`."""
        self._models = (*self._models, *models)

    def serve(self, bus: Bus, on_tick: Callable[[], None], on_ready: Callable[[], None] = lambda: None) -> None:
        """Serves frames until stopped, then finishes the accepted ones and closes the bus.

        Args:
            bus: The connection to the broker.
            on_tick: Called twice a second.
            on_ready: Called once frames are accepted.

        Raises:
            SkylaneError: the broker cannot share frames with another worker, or another worker has the same name.
        """
        limits = ImageLimits(max_pixels=self._settings.max_pixels)
        decoder = Decoder(self._admission, self._replier, self.served_models, limits)
        self.bind()
        for model in self._models:
            self.served_models.set_current(self.start_serving(model))
        self._models = ()  # A reference would keep unloaded models in memory.
        stages = self._start(decoder)
        try:
            # Vehicles send probes as soon as the worker is announced.
            self._clock_responder.open(bus, self._replier.errors)
            self._mqtt.open(bus)
            if self._control:
                self._control.open(bus)
            if self._gateway:
                self._gateway.start()
            on_ready()
            while not self._stopped.wait(0.5):
                on_tick()
                self._health.update(is_online=self._mqtt.is_online and self._replier.errors.is_healthy)
            _LOG.info("draining", **({"reason": str(self._stop_reason)} if self._stop_reason else {}))
            self._mqtt.stop()
        finally:
            self._health.remove()
            self.door.stop()
            for close, threads in stages:
                close()
                for thread in threads:
                    thread.join(self._settings.drain_s)
            if self._gateway:
                self._gateway.close()
            self._mqtt.close()
        self._threads.join(self._settings.drain_s)
        if self._stop_reason is not None:
            raise self._stop_reason

    def start_serving(self, model: Model) -> ServedModel:
        """Starts the threads that run a model; the caller makes it the current version."""
        settings = self._settings
        batcher = Batcher(
            model,
            self._replier,
            self._admission,
            self._postprocessor,
            decoders=settings.decoders,
            max_wait_ms=settings.max_wait_ms,
            circuit_breaker=self._circuit_breaker,
        )
        served = ServedModel(model, batcher, owns_model=self._loader is not None, drain_s=settings.drain_s)
        try:
            served.start(self._threads)
        except BaseException:
            served.close()
            raise
        return served

    def _start(self, decoder: Decoder) -> list[PipelineStage]:
        """Starts all threads; returns the stages in the order in which they must be closed."""
        start = self._threads.start
        control: list[PipelineStage] = []
        if self._control:
            bodies = {"control": self._control.run_queries, "loading": self._control.run_changes}
            control = [(self._control.close, [start(name, body) for name, body in bodies.items()])]
        encoders = [start(f"postprocess-{i}", self._postprocessor.run) for i in range(self._settings.encoders)]
        decoders = [start(f"decoder-{i}", decoder.run) for i in range(self._settings.decoders)]
        return [
            *control,
            (self._admission.close, decoders),
            (self.served_models.close, ()),
            (self._postprocessor.close, encoders),
            (self._mqtt.close_refusals, [start("refusals", self._mqtt.run)]),
        ]

    def _ignored(self) -> Mapping[str, int]:
        """Number of messages that did not become a request, by kind and reason."""
        ignored = {f"probe_{reason}": n for reason, n in self._clock_responder.refused.items()}
        ignored |= {f"frame_{reason}": n for reason, n in self._mqtt.ignored.items()}
        if self._control:
            ignored |= {f"control_refused_{reason}": n for reason, n in self._control.refused.items()}
        return ignored
