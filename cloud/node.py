"""The cloud node, a worker: wires intake, admission, decoding, batching and post-processing together."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloud.frontends.clock_responder import Echoes
from cloud.frontends.control import Control
from cloud.frontends.frontends import Doors
from cloud.frontends.mqtt import MqttFrontend
from cloud.gateway.common.auth import Authenticator
from cloud.gateway.context import WorkerContext
from cloud.gateway.gateway import Gateway
from cloud.gateway.settings import GatewaySettings
from cloud.gateway.submission import Door
from cloud.models.loader import Loader
from cloud.models.model import Model
from cloud.models.model_swap import Exchange
from cloud.serving.admission import Admission
from cloud.serving.batching import Batcher
from cloud.serving.circuit_breaker import CircuitBreaker
from cloud.serving.decoding import Decoder
from cloud.serving.postprocessing import Postprocessor
from cloud.serving.replies import Replier
from cloud.serving.served_models import Lane, Serving
from shared.errors import SkylaneError
from shared.imaging.image_codecs import ImageLimits
from shared.logs import get_logger
from shared.messages import topics
from shared.mqtt.bus import Bus
from shared.runtime.health_file import HealthFile
from shared.runtime.threads import ThreadGroup

_DRAIN_S = 30.0
_LOG = get_logger("cloud")

Room = tuple[Callable[[], None], Sequence[threading.Thread]]  # How it is closed, and who works in it.


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works."""

    worker: str
    session: str
    group: str = topics.GROUP
    qos: int = topics.FRAMES.qos
    max_frames: int = 64  # That wait at a time; more are answered `overloaded`.
    max_bytes: int = 256 << 20
    max_pixels: int = 1 << 25  # Of one picture.
    decoders: int = 1
    encoders: int = 1  # Threads that make results and encode them.
    max_wait_ms: float = 0.0  # That a batch may wait for more frames.
    takes_control: bool = True  # Whether operators may load and unload over the broker, and
    operators: tuple[str, ...] = ()  # which; empty: whoever the broker lets through.
    gateway: GatewaySettings | None = None  # None: the broker is the only door.
    drain_s: float = _DRAIN_S  # For each stage to finish what it holds when the worker stops.
    health_file: Path | None = None

    @property
    def node(self) -> str:
        """This process's name in stamps."""
        return f"cloud/{self.worker}/{self.session}"


class CloudNode:
    """A worker that answers frames until it is stopped."""

    def __init__(self, models: Sequence[Model], settings: WorkerSettings, *, loader: Loader | None = None) -> None:
        """`models` are served from the start.

        With a `loader` they came from it, and are closed when they are served no more; without one they are the caller's
        to close, and operators can load none.
        """
        self._settings = settings
        self._loader = loader
        self._stopped = threading.Event()
        self._end: SkylaneError | None = None
        self._threads = ThreadGroup(self._stopped.set)
        self._replier = Replier(settings.worker, settings.node)
        self._admission = Admission(settings.max_frames, settings.max_bytes)
        self._postprocessor = Postprocessor(self._replier)
        self._hold_off = CircuitBreaker()
        self._health = HealthFile(settings.health_file)
        self._models = models
        self._serving = Serving()
        self._intake = MqttFrontend(
            self._admission,
            self._replier,
            self._serving,
            worker=settings.worker,
            session=settings.session,
            group=settings.group,
            qos=settings.qos,
            circuit_breaker=self._hold_off,
            give_up=self.end,
        )
        self.door = Door(  # Where frames enter that came over neither MQTT nor a network.
            self._admission,
            self._serving,
            self._hold_off,
            session=settings.session,
            refuse=self._intake.refuse,
        )
        doors = Doors(self._intake, self.door)
        exchange = Exchange(self._serving, doors, self._open_lane, self._loader, self._stopped.is_set)
        self._control = (
            Control(settings.worker, self._serving, exchange, settings.operators, errors=self._replier.errors)
            if settings.takes_control
            else None
        )
        self._echoes = Echoes(settings.worker, settings.node)
        self._gateway: Gateway | None = None

    @property
    def ports(self) -> Mapping[str, int]:
        """Where the gateway's servers listen, by `http` and `grpc`; once bound."""
        return self._gateway.ports if self._gateway else {}

    @property
    def counts(self) -> Mapping[str, int]:
        """How many frames were answered how or could not be, and how many probes and control requests were refused."""
        return {**self._replier.counts, **self._refused()}

    @property
    def engine_processes(self) -> Mapping[str, int]:
        """The processes that engines have to themselves, by `<model>-<version>`: those that lost theirs have a new one."""
        pids = {"-".join(lane.key): lane.model.pid for lane in self._serving.lanes}
        return {name: pid for name, pid in pids.items() if pid is not None}

    def fault(self, error: BaseException) -> None:
        """Something went wrong in a callback of the bus."""
        self._threads.fault(error)

    def announce(self) -> None:
        """Tell again what is served, after a reconnect."""
        self._intake.announce()

    def end(self, reason: SkylaneError) -> None:
        """Have the node drain and end for a reason, which `serve` then raises; any thread may call it."""
        self._end = reason
        self._stopped.set()

    def stop(self) -> None:
        """Ask the node to drain and end; may be called from a signal handler."""
        self._stopped.set()

    def bind(self) -> None:
        """Binds the gateway's ports, which takes no time; calls are answered once the node serves.

        Raises:
            SkylaneError: an address cannot be listened at, or a library is missing.
        """
        settings = self._settings
        if settings.gateway is None or self._gateway is not None:
            return
        parts = WorkerContext(
            worker=settings.worker,
            door=self.door,
            callers=Authenticator.read(settings.gateway.tokens),
            echoes=self._echoes,
            control=self._control,
            settings=settings.gateway,
            limits=ImageLimits(max_pixels=settings.max_pixels),
            tally=self._replier.tally,
            errors=self._replier.errors,
            refused=self._refused,
        )
        self._gateway = Gateway(parts, self._threads.fault)

    def add(self, models: Sequence[Model]) -> None:
        """Adds models to those that are served from the start; to be called before `serve`."""
        self._models = (*self._models, *models)

    def serve(self, bus: Bus, on_tick: Callable[[], None], on_ready: Callable[[], None] = lambda: None) -> None:
        """Answer frames until stopped, then drain: finish what was admitted, and say goodbye.

        `on_tick` is called twice a second, `on_ready` once frames are taken.

        Raises:
            SkylaneError: the broker cannot share the work with the worker it already has, or the worker's name is
                another's.
        """
        intake, door = self._intake, self.door
        decoder = Decoder(
            self._admission,
            self._replier,
            self._serving,
            ImageLimits(max_pixels=self._settings.max_pixels),
        )
        self.bind()
        gateway = self._gateway
        for model in self._models:
            self._serving.place(self._open_lane(model))
        self._models = ()  # What is unloaded must be held by nobody.
        rooms = self._start(intake, decoder)
        try:
            # First, for vehicles probe a worker as soon as it is announced.
            self._echoes.open(bus, self._replier.errors)
            intake.open(bus)
            if self._control:
                self._control.open(bus)
            if gateway:
                gateway.start()
            on_ready()
            while not self._stopped.wait(0.5):
                on_tick()
                self._health.update(is_online=intake.is_online and self._replier.errors.is_healthy)
            _LOG.info("draining", **({"reason": str(self._end)} if self._end else {}))
            intake.stop()
        finally:
            self._health.remove()
            door.stop()
            # Each room is closed when the one before it is empty, and the door when all is answered.
            for close, threads in rooms:
                close()
                for thread in threads:
                    thread.join(self._settings.drain_s)
            if gateway:
                gateway.close()
            intake.close()
        self._threads.join(self._settings.drain_s)
        if self._end is not None:
            raise self._end

    def _start(self, intake: MqttFrontend, decoder: Decoder) -> list[Room]:
        """Start all threads; the rooms come back in the order in which frames pass them."""
        settings = self._settings
        control: list[Room] = []
        if self._control:
            bodies = {"control": self._control.answer, "loading": self._control.change}
            control = [(self._control.close, [self._threads.start(name, body) for name, body in bodies.items()])]
        encoders = [self._threads.start(f"postprocess-{i}", self._postprocessor.run) for i in range(settings.encoders)]
        return [
            *control,
            (
                self._admission.close,
                [self._threads.start(f"decoder-{i}", decoder.run) for i in range(settings.decoders)],
            ),
            (self._serving.close, ()),
            (self._postprocessor.close, encoders),
            (intake.close_refusals, [self._threads.start("refusals", intake.run)]),
        ]

    def _refused(self) -> Mapping[str, int]:
        """What was refused before it was a frame, by reason."""
        refused = {f"probe_{reason}": n for reason, n in self._echoes.refused.items()}
        refused |= {f"frame_{reason}": n for reason, n in self._intake.ignored.items()}
        if self._control:
            refused |= {f"control_refused_{reason}": n for reason, n in self._control.refused.items()}
        return refused

    def _open_lane(self, model: Model) -> Lane:
        settings = self._settings
        batcher = Batcher(
            model,
            self._replier,
            self._admission,
            self._postprocessor.put,
            decoders=settings.decoders,
            max_wait_ms=settings.max_wait_ms,
            finish=self._postprocessor.answer,
            finishing=self._postprocessor.finishing,
            circuit_breaker=self._hold_off,
        )
        lane = Lane(model, batcher, owns_model=self._loader is not None, drain_s=settings.drain_s)
        try:
            lane.start(self._threads)
        except BaseException:
            lane.close()
            raise
        return lane
