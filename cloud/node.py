"""The cloud node, a worker: connects its frontends, queue, decoders, batchers and postprocessing."""

import threading
from collections.abc import Callable, Mapping, Sequence

from cloud.config import CloudConfig
from cloud.frontend import FRONTENDS, Frontend
from cloud.frontends.clock_responder import ClockResponder
from cloud.frontends.control import Control
from cloud.gateway.common.auth import Authenticator
from cloud.gateway.limits import DEFAULT_TIMEOUTS, GatewayTimeouts
from cloud.models.loader import ModelLoader
from cloud.models.model_swap import ModelSwap
from cloud.preflight import limit_connections
from cloud.serving.admission import Admission, CircuitBreaker
from cloud.serving.batching import Batcher
from cloud.serving.decoding import Decoder
from cloud.serving.replies import Postprocessor, Replier
from cloud.serving.served_models import InFlight, LoadMeter, ServedModel, ServedModels
from cloud.serving.submission import Submission
from shared.errors import SkylaneError
from shared.imaging.image_codecs import ImageLimits
from shared.inference.model import Model
from shared.logs import get_logger
from shared.mqtt.bus import Bus
from shared.registry import load
from shared.runtime.health_file import HealthFile
from shared.runtime.periodic import run_round
from shared.threads import Counts, ThreadGroup

DRAIN_S = 30.0
_LOG = get_logger("cloud")

PipelineStage = tuple[Callable[[], None], Sequence[threading.Thread]]  # Its close function and its threads.


class CloudNode:
    """A worker that serves frames until it is stopped."""

    def __init__(
        self,
        models: Sequence[Model],
        config: CloudConfig,
        *,
        session: str,
        loader: ModelLoader | None = None,
        timeouts: GatewayTimeouts = DEFAULT_TIMEOUTS,
        drain_s: float = DRAIN_S,
    ) -> None:
        """Builds a worker that serves `models` from the start.

        With a `loader`, the node closes models that it no longer serves, and operators can load others. Without one, the
        caller closes the models.

        Args:
            models: The first models.
            config: The configuration; the worker has a name.
            session: A random text for this run of the worker.
            loader: Loads further models.
            timeouts: The times for which the gateway waits for its callers.
            drain_s: The longest wait for each stage when the worker stops.
        """
        assert config.worker is not None
        self.name: str = config.worker
        self.config = config
        self.session = session
        self.timeouts = timeouts
        self.drain_s = drain_s
        self.connection_limits = limit_connections(config)  # Open connections of each server of the gateway.
        self._models = models
        self._loader = loader
        self._stopped = threading.Event()
        self._stop_reason: SkylaneError | None = None
        self._must_announce = False  # Whether the last announcement failed.
        self._health = HealthFile(config.health_file)
        self.threads = ThreadGroup(self._stopped.set)  # Threads that the node waits for; their faults end it.
        self.image_limits = ImageLimits(max_pixels=config.max_pixels)
        process = f"cloud/{config.worker}/{session}"  # The name of this process in stamps.
        self._admission = Admission(config.max_frames, config.max_bytes)
        self._circuit_breaker = CircuitBreaker()
        self.served_models = ServedModels()
        self.in_flight = InFlight()
        self.load_meter = LoadMeter(self.in_flight, self._admission, self.served_models)
        self.replier = Replier(config.worker, process, self.load_meter.load_after)
        self._postprocessor = Postprocessor(self.replier, config.encoders)
        self.submission = Submission(
            self._admission, self._circuit_breaker, self.in_flight, self.replier, self.served_models, session=session
        )
        self.clock_responder = ClockResponder(config.worker, process)
        self.authenticator = Authenticator.from_file(config.tokens)
        self.call_counts = Counts()  # Number of calls by "PROTOCOL CODE", failed ones included.
        self.bus: Bus | None = None  # The connection to the broker, from `serve` on.
        self._frontends: dict[str, Frontend] = {"calls": self.submission}  # By name; closed in this order.
        model_swap = ModelSwap(
            self.served_models,
            self._frontends.values(),
            self.in_flight,
            self.start_serving,
            loader=loader,
            is_stopping=self._stopped.is_set,
        )
        self.control = (  # None: models cannot be loaded or unloaded.
            Control(config.worker, self.served_models, model_swap, config.operators, errors=self.replier.errors)
            if config.control
            else None
        )

    @property
    def ports(self) -> Mapping[str, int]:
        """The ports of the frontends that listen, after `bind`, by their names."""
        return {name: each.port for name, each in self._frontends.items() if each.port is not None}

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of frames by the status of their reply, and of ignored frames, probes and control requests."""
        return {**self.replier.counts, **self.ignored}

    @property
    def ignored(self) -> Mapping[str, int]:
        """Number of messages that did not become a request, by kind and reason."""
        ignored = {f"probe_{reason}": n for reason, n in self.clock_responder.refused.items()}
        ignored |= {f"frame_{reason}": n for reason, n in self.replier.ignored.items()}
        if self.control:
            ignored |= {f"control_refused_{reason}": n for reason, n in self.control.refused.items()}
        return ignored

    @property
    def engine_processes(self) -> Mapping[str, int]:
        """The current process ids of isolated engines, by `<model>-<version>`."""
        pids = {"-".join(served.key): served.model.pid for served in self.served_models.all}
        return {name: pid for name, pid in pids.items() if pid is not None}

    def announce(self) -> None:
        """Repeats the announcement of the served models after a reconnect; `serve` tries again if that fails."""
        announced = [run_round("announcement", frontend.announce) for frontend in list(self._frontends.values())]
        self._must_announce = not all(announced)

    def end(self, reason: SkylaneError) -> None:
        """Drains and ends the node; `serve` then raises `reason`. Thread-safe."""
        self._stop_reason = reason
        self._stopped.set()

    def stop(self) -> None:
        """Drains and ends the node; may be called by a signal handler."""
        self._stopped.set()

    def bind(self) -> None:
        """Binds the ports of the frontends that listen; calls are served once `serve` runs.

        Raises:
            SkylaneError: an address cannot be bound, or a library is missing.
        """
        for name, address in self.config.addresses.items():
            if name not in self._frontends:
                self._open(name, address)

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
        decoder = Decoder(self._admission, self.replier, self.served_models, self.image_limits)
        self.bus = bus
        self.bind()
        for model in self._models:
            self.served_models.set_current(self.start_serving(model))
        self._models = ()  # A reference would keep unloaded models in memory.
        stages = self._start(decoder)
        try:
            # Vehicles send probes as soon as the worker is announced.
            self.clock_responder.open(bus, self.replier.errors)
            self._open("mqtt", bus)
            if self.control:
                self.control.open(bus)
            for frontend in self._frontends.values():
                frontend.start()
            on_ready()
            while not self._stopped.wait(0.5):
                self._tick(on_tick)
            _LOG.info("draining", **({"reason": str(self._stop_reason)} if self._stop_reason else {}))
            for frontend in self._frontends.values():
                frontend.stop()
        finally:
            self._health.remove()
            for close, threads in stages:
                close()
                for thread in threads:
                    thread.join(self.drain_s)
            for frontend in self._frontends.values():
                frontend.close()
        self.threads.join(self.drain_s)
        if self._stop_reason is not None:
            raise self._stop_reason

    def start_serving(self, model: Model) -> ServedModel:
        """Starts the threads that run a model; the caller makes it the current version."""
        batcher = Batcher(
            model,
            self.replier,
            self._admission,
            self._postprocessor,
            decoders=self.config.decoders,
            max_wait_ms=self.config.max_wait_ms,
            circuit_breaker=self._circuit_breaker,
        )
        served = ServedModel(model, batcher, owns_model=self._loader is not None, drain_s=self.drain_s)
        try:
            served.start(self.threads)
        except BaseException:
            served.close()
            raise
        return served

    def _tick(self, on_tick: Callable[[], None]) -> None:
        run_round("tick", on_tick)
        run_round("health", self._update_health)
        if self._must_announce:
            self.announce()

    def _update_health(self) -> None:
        is_online = all(frontend.is_online for frontend in self._frontends.values())
        self._health.update(is_online=is_online and self.replier.errors.is_healthy)

    def _open(self, name: str, endpoint: str | Bus) -> None:
        self._frontends[name] = load("frontend", FRONTENDS, name)(self, endpoint)

    def _start(self, decoder: Decoder) -> list[PipelineStage]:
        """Starts all threads; returns the stages in the order in which they must be closed."""
        start = self.threads.start
        control: list[PipelineStage] = []
        if self.control:
            bodies = {"control": self.control.run_queries, "loading": self.control.run_changes}
            control = [(self.control.close, [start(name, body) for name, body in bodies.items()])]
        encoders = [start(f"postprocess-{i}", self._postprocessor.run) for i in range(self.config.encoders)]
        decoders = [start(f"decoder-{i}", decoder.run) for i in range(self.config.decoders)]
        return [
            *control,
            (self._admission.close, decoders),
            (self._abandon, ()),
            (self.served_models.close, ()),
            (self._postprocessor.close, encoders),
        ]

    def _abandon(self) -> None:
        """Ends decoders that still wait for a slot: closed batchers have none."""
        if frames := self._admission.abandon():
            _LOG.warning("frames left to their vehicles", frames=frames, seconds=self.drain_s)
