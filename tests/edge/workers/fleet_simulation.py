"""A discrete-event simulation: vehicles with the real dispatcher, workers that serve one frame after the other."""

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial

from edge.frame_record import FrameRecord
from edge.workers.load_dispatcher import LoadDispatcher
from edge.workers.worker_clocks import WorkerClocks
from edge.workers.worker_directory import WorkerDirectory, WorkerWatch
from edge.workers.worker_stats import WorkerLoads, WorkerStats
from shared.clock import Exchange
from shared.messages.frame import ResultMessage, Status
from shared.messages.load import LoadReport, WorkerLoad, pack_load
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import LOADS, WORKER_STATUS, FrameId
from shared.mqtt.bus import Delivery
from shared.stages import Stage
from tests.edge.samples import CARD

MS, SECOND = 1_000_000, 1_000_000_000
_CROSSING_NS = MS  # Travel time of a message in one direction.
_TOKENS, _REFILL_NS, _HEARTBEAT_NS = 2.0, SECOND // 2, 2 * SECOND
_CAPACITY = 256


class SimulatedWorker:
    """A worker that serves its frames in order, each in the same time, and reports its load as real ones do."""

    def __init__(self, name: str, service_ms: float, claims: Callable[[WorkerLoad], WorkerLoad] | None = None) -> None:
        """`claims` returns what the worker reports instead of its load."""
        self.name = name
        self.session = "s1"
        self.service_ms = service_ms
        self.queue: deque[tuple[SimulatedVehicle, FrameRecord, int]] = deque()
        self.busy_until_ns = 0
        self.served = 0
        self._claims = claims or (lambda load: load)
        self._tokens, self._filled_ns = _TOKENS, 0
        self.reported: bytes = b""
        self.reported_ns = 0

    def load(self, now_ns: int) -> WorkerLoad:
        """Returns the load that the worker reports now."""
        wait_ms = max(0, self.busy_until_ns - now_ns) / MS
        free = _CAPACITY - len(self.queue)
        return self._claims(WorkerLoad(len(self.queue), free, wait_ms, self.service_ms, self.service_ms))

    def takes_token(self, now_ns: int) -> bool:
        """Returns whether another report may be published now."""
        self._tokens = min(_TOKENS, self._tokens + (now_ns - self._filled_ns) / _REFILL_NS)
        self._filled_ns = now_ns
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class SimulatedVehicle:
    """A vehicle's dispatcher and what it knows."""

    def __init__(self, number: int, seed: int) -> None:
        self.name = f"car-{number}"
        self.loads = WorkerLoads(CARD.name)
        self.workers = WorkerDirectory(CARD.name, loads=self.loads)
        self.clocks = WorkerClocks()
        self.dispatcher = LoadDispatcher(
            WorkerWatch(self.workers, self.clocks, WorkerStats()), random.Random(seed * 1000 + number)
        )
        self.in_flight: dict[int, FrameRecord] = {}


class FleetSimulation:
    """Vehicles and workers on one clock; frames are due at random times, or the next one when another is answered."""

    def __init__(self, service_ms: Sequence[float], vehicles: int, *, seed: int = 1, by_load: bool = True) -> None:
        """`by_load`: whether the vehicles choose; otherwise, the broker deals all frames in turn."""
        self.now_ns = SECOND
        self._turn = 0
        self.rng = random.Random(seed)
        self.vehicles = [SimulatedVehicle(number, seed) for number in range(vehicles)]
        self.workers: dict[str, SimulatedWorker] = {}
        self.answered_ns: list[int] = []  # Time of each answer.
        self.latencies_ms: list[float] = []
        self.shares: Counter[str] = Counter()
        self.queues: list[tuple[int, tuple[int, ...]]] = []  # Queue lengths of the workers, over time.
        self.is_by_load = by_load
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._sequence = itertools.count()
        for number, each_ms in enumerate(service_ms):
            self.join(SimulatedWorker(f"w{number}", each_ms))
        self._probe()

    def at(self, at_ns: int, event: Callable[[], None]) -> None:
        """Schedules an event."""
        heapq.heappush(self._events, (at_ns, next(self._numbers), event))

    def join(self, worker: SimulatedWorker) -> None:
        """Lets a worker come online."""
        self.workers[worker.name] = worker
        status = pack_status(NodeStatus(NodeState.ONLINE, worker.session, _CAPACITY, (CARD,)))
        for vehicle in self.vehicles:
            vehicle.workers.announced(Delivery(WORKER_STATUS.of(worker=worker.name), status, self.now_ns))
        self._publish(worker)

    def play_poisson(self, rate_hz: float, seconds: float) -> None:
        """Plays frames that are due at random times, at random vehicles."""
        end_ns = self.now_ns + round(seconds * SECOND)

        def due() -> None:
            self.send(self.rng.choice(self.vehicles))
            next_ns = self.now_ns + round(self.rng.expovariate(rate_hz) * SECOND)
            if next_ns < end_ns:
                self.at(next_ns, due)

        self.at(self.now_ns, due)
        self.run_until(end_ns + 20 * SECOND)

    def play_saturated(self, window: int, seconds: float) -> None:
        """Plays in a closed loop: each vehicle keeps `window` frames in flight."""
        for vehicle in self.vehicles:
            for _ in range(window):
                self.at(self.now_ns + round(self.rng.random() * MS), partial(self.send, vehicle, again=True))
        self.run_until(self.now_ns + round(seconds * SECOND))

    def run_until(self, end_ns: int) -> None:
        """Processes the events until a time."""
        while self._events and self._events[0][0] <= end_ns:
            self.now_ns, _, event = heapq.heappop(self._events)
            event()
        self.now_ns = end_ns

    def send(self, vehicle: SimulatedVehicle, *, again: bool = False) -> None:
        """Sends a frame; `again`: another one when it is answered."""
        chosen = vehicle.dispatcher.choose(tuple(vehicle.in_flight.values()), self.now_ns)
        sequence = next(self._sequence)
        record = FrameRecord.of(FrameId(vehicle.name, "left", "s1", sequence), "/left")
        record.times[Stage.SENT] = self.now_ns
        if self.is_by_load:
            record.worker, record.expected_ns = chosen.worker or "", chosen.expected_ns
        target = record.worker or self._next_of_group()
        vehicle.in_flight[sequence] = record
        self.shares[target] += 1
        self.at(self.now_ns + _CROSSING_NS, partial(self._arrive, self.workers[target], vehicle, record, again=again))

    def _next_of_group(self) -> str:
        """Returns the next worker of the shared group, which the broker deals frames in turn."""
        self._turn += 1
        return [*self.workers][self._turn % len(self.workers)]

    def _arrive(
        self,
        worker: SimulatedWorker,
        vehicle: SimulatedVehicle,
        record: FrameRecord,
        again: bool,  # noqa: FBT001
    ) -> None:
        was_idle = not worker.queue
        worker.busy_until_ns = max(self.now_ns, worker.busy_until_ns) + round(worker.service_ms * MS)
        worker.queue.append((vehicle, record, self.now_ns))
        self.queues.append((self.now_ns, tuple(len(each.queue) for each in self.workers.values())))
        self.at(worker.busy_until_ns, partial(self._serve, worker, again=again))
        if was_idle:
            self._publish(worker)
        else:
            self._publish_soon(worker)

    def _serve(self, worker: SimulatedWorker, *, again: bool) -> None:
        vehicle, record, _ = worker.queue.popleft()
        worker.served += 1
        self.at(
            self.now_ns + _CROSSING_NS,
            partial(self._answer, worker, vehicle, record, worker.load(self.now_ns), again=again),
        )
        self.queues.append((self.now_ns, tuple(len(each.queue) for each in self.workers.values())))
        if worker.queue:
            self._publish_soon(worker)
        else:
            self._publish(worker)

    def _answer(
        self,
        worker: SimulatedWorker,
        vehicle: SimulatedVehicle,
        record: FrameRecord,
        load: WorkerLoad,
        *,
        again: bool,
    ) -> None:
        del vehicle.in_flight[record.id.sequence]
        self.answered_ns.append(self.now_ns)
        self.latencies_ms.append((self.now_ns - record.sent_ns) / MS)
        message = ResultMessage(record.id, 1, Status.ANSWERED, worker.name, load=load)
        vehicle.loads.replied(record, message, worker.session, self.now_ns)
        if again:
            self.send(vehicle, again=again)

    def _probe(self) -> None:
        for vehicle in self.vehicles:
            for name, session in vehicle.workers.online():
                exchange = Exchange(self.now_ns - 2 * _CROSSING_NS, self.now_ns, self.now_ns, self.now_ns)
                vehicle.clocks.add_probe(f"cloud/{name}/{session}", exchange)
        self.at(self.now_ns + SECOND, self._probe)

    def _publish_soon(self, worker: SimulatedWorker) -> None:
        if self.now_ns - worker.reported_ns >= SECOND // 2:
            self._publish(worker)

    def _publish(self, worker: SimulatedWorker) -> None:
        report = pack_load(LoadReport(worker.session, {CARD.name: worker.load(self.now_ns)}))
        if not worker.takes_token(self.now_ns):
            return
        worker.reported_ns = self.now_ns
        self.at(self.now_ns + _CROSSING_NS, partial(self._deliver, worker, report))
        self.at(self.now_ns + _HEARTBEAT_NS, partial(self._heartbeat, worker, self.now_ns))

    def _heartbeat(self, worker: SimulatedWorker, since_ns: int) -> None:
        if worker.reported_ns == since_ns and worker.name in self.workers:
            self._publish(worker)

    def _deliver(self, worker: SimulatedWorker, report: bytes) -> None:
        for vehicle in self.vehicles:
            delivery = Delivery(LOADS.of(worker=worker.name), report, self.now_ns)
            vehicle.workers.load_announced(delivery)


def ideal_latencies_ms(service_ms: Sequence[float], rate_hz: float, frames: int, seed: int = 1) -> list[float]:
    """Returns the latencies of one queue that all workers serve; the fastest free worker takes the next frame."""
    rng, arrival_ms, latencies_ms = random.Random(seed), 0.0, []
    free_ms = [0.0] * len(service_ms)
    for _ in range(frames):
        arrival_ms += rng.expovariate(rate_hz) * 1e3
        start_ms = max(arrival_ms, min(free_ms))
        place = min((place for place, at_ms in enumerate(free_ms) if at_ms <= start_ms), key=lambda p: service_ms[p])
        free_ms[place] = start_ms + service_ms[place]
        latencies_ms.append(free_ms[place] - arrival_ms)
    return latencies_ms


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns a percentile."""
    return sorted(values)[int(len(values) * percent / 100)]
