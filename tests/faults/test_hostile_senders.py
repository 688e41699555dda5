"""Sender faults: broken messages of every kind, and messages that would decompress to gigabytes."""

import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ops.processes.child import Child
from shared.errors import SkylaneError
from shared.messages import topics
from shared.messages.control import ControlRequest, Verb, pack_request
from shared.messages.frame import ResultMessage, Status, unpack_result
from shared.messages.topics import FrameId
from shared.mqtt.bus import Properties
from shared.mqtt.paho_bus import MqttBus
from tests.support.faults.finding import Figure
from tests.support.faults.hostile import message_attack
from tests.support.faults.hostile.bombs import bombs
from tests.support.faults.hostile.message_attack import attack_vehicle, attack_worker
from tests.support.faults.hostile.messages import for_worker
from tests.support.faults.rig import HEIGHT, MODEL, ROOT, WIDTH, Rig, RigError
from tests.support.mqtt_bus import connect

_WORKER_CASES = 450_100  # Messages to each of two workers, as fast as they are answered.
_FLOOD_CASES = 40_000  # Messages to a worker, faster than it can answer.
_VEHICLE_CASES = 40_000  # Messages to a vehicle.
_BROKER_CASES = 20_000  # Messages through a real broker with a good vehicle; together more than a million.
_ATTACK_S = 3600.0
_MAX_IN_PROGRESS = 32  # Maximum unread messages to a worker through the broker.
_GROWTH_MB = 64
_RATE_HZ = 5.0  # Frame rate of the good vehicle.
_BOMB_GROWTH_MB = 128  # A message may have a million values of 50 bytes each, and is itself kept more than once.
_ANSWER_S = 30.0
_REFUSAL_S = 5.0
_SENDER, _CAMERA, _ASKER = "hostile", "left", "asker"


@pytest.mark.faults(
    15,
    "a million messages cut, flipped, spliced and lied in, to workers and a vehicle",
    "each is answered or counted, and a good vehicle beside them is served",
)
def test_broken_messages(rig: Rig) -> None:
    """Sends a million mutated messages to workers and a vehicle, directly and through Mosquitto with a good vehicle."""
    seeds = [rig.chance.randrange(1 << 31) for _ in range(5)]
    rig.say(f"{_WORKER_CASES:,} messages to each of two workers")
    results = _attacks(rig.folder, *({"node": "worker", "count": _WORKER_CASES, "seed": seed} for seed in seeds[:2]))
    rig.say("a flood to a worker, and answers to a vehicle")
    results += _attacks(
        rig.folder,
        {"node": "worker", "count": _FLOOD_CASES, "seed": seeds[2], "floods": True},
        {"node": "vehicle", "count": _VEHICLE_CASES, "seed": seeds[3]},
    )
    rig.say(f"{_BROKER_CASES:,} messages through the broker, beside a good vehicle")
    broker = rig.broker()
    worker = rig.worker(broker.url, think_ms=1)
    rig.vehicle(broker.url, pictures=600, rate_hz=_RATE_HZ)
    process = psutil.Process(worker.pid)
    before_bytes = process.memory_info().rss
    answered = _publish(broker.url, worker.name, seeds[4])
    grown_mb = [(process.memory_info().rss - before_bytes) / 1e6, *(result["rss_growth_mb"] for result in results)]
    accounts = rig.end_vehicles()
    delivered = sum(result["delivered"] for result in results)
    seconds = max(result["seconds"] for result in results[:2])
    rig.conclude(
        accounts,
        Figure("messages", delivered + _BROKER_CASES),
        Figure("crashes", int(not worker.is_running), most=0),
        Figure("neither answered nor counted", sum(abs(result["unaccounted"]) for result in results), most=0),
        Figure("answered or counted", sum(result["delivered"] for result in results[:2]) / seconds, "a second"),
        Figure("memory grew by", max(0.0, *grown_mb), "MB", most=_GROWTH_MB),
        remarks=(_accounted(results), f"through the broker: {answered} of {_BROKER_CASES:,} got an answer"),
    )


@pytest.mark.faults(
    16,
    "pictures and messages that would unfold into gigabytes",
    "each is refused before memory is taken, and a good vehicle beside them is served",
)
def test_bombs(rig: Rig) -> None:
    """Sends each bomb to a real worker, which must refuse it before it allocates memory, and continue."""
    broker = rig.broker()
    worker = rig.worker(broker.url, think_ms=1)
    rig.vehicle(broker.url, pictures=600, rate_hz=_RATE_HZ)
    rig.wait_for_frames(rig.vehicles, 10)
    answers: queue.SimpleQueue[ResultMessage] = queue.SimpleQueue()
    took: dict[str, tuple[float, float]] = {}  # Memory growth and seconds until the refusal, by bomb.
    broken = []
    bus = rig.enter(connect(broker.url))
    bus.subscribe(
        topics.MASKS.filter(vehicle=_SENDER), 1, lambda delivery: answers.put(unpack_result(delivery.payload))
    )
    topic = topics.FRAMES.of(model=MODEL, vehicle=_SENDER, camera=_CAMERA)
    for bomb in bombs(FrameId(_SENDER, _CAMERA, "s1", 0), MODEL, HEIGHT, WIDTH):
        rig.say(bomb.name)
        before_mb, began_s = _begin_peak(worker.pid), time.monotonic()
        bus.publish(topic, bomb.payload, qos=1, properties=Properties(correlation=str(bomb.frame_id).encode()))
        try:
            answer = answers.get(timeout=_ANSWER_S)
        except queue.Empty:
            broken.append(f"{bomb.name}: no answer within {_ANSWER_S:g} s")
            break
        if answer.status is not Status.REJECTED or answer.id != bomb.frame_id:
            broken.append(f"{bomb.name} was {answer.status}: {answer.reason}")
        took[bomb.name] = (_peak_mb(worker.pid) - before_mb, time.monotonic() - began_s)
    grown_mb, seconds = ([each[place] for each in took.values()] for place in (0, 1))
    rig.conclude(
        rig.end_vehicles(),
        Figure("bombs refused", len(took)),
        Figure("memory grew at most by", max(grown_mb, default=None), "MB", most=_BOMB_GROWTH_MB),
        Figure("slowest refusal", max(seconds, default=None), "s", most=_REFUSAL_S),
        remarks=(f"memory by bomb: {', '.join(f'{name} {mb:.1f} MB' for name, (mb, _) in took.items() if mb >= 1)}",),
        broken=broken,
    )


def _attacks(folder: Path, *attacks: Mapping[str, object]) -> list[dict[str, Any]]:
    """Runs `message_attack` with each of the settings, all at the same time, and returns the results.

    Raises:
        BenchError: a node ended because of a message; the text has its last output.
    """
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                Child(
                    message_attack.__name__,
                    settings,
                    environment={"PYTHONPATH": str(ROOT)},
                    log=folder / f"attack-{'-'.join(map(str, settings.values()))}.log",
                )
            )
            for settings in attacks
        ]
        return [process.wait(_ATTACK_S) for process in processes]


def _publish(url: str, worker: str, seed: int) -> int:
    """Sends broken messages through the broker, a few at a time, and returns the number of replies.

    After every few messages the function waits until the worker has read them, because the broker silently discards
    messages beyond 256 waiting ones.
    """
    answers: Counter[str] = Counter()
    with connect(url) as bus:
        for topic_filter in (topics.MASKS.filter(vehicle=_SENDER), topics.ECHOES.filter()):
            bus.subscribe(topic_filter, 1, lambda delivery: answers.update((delivery.topic.split("/")[2],)))
        asking = _Asking(bus, worker)
        messages = for_worker(seed, worker=worker, model=MODEL, vehicle=_SENDER, height=HEIGHT, width=WIDTH)
        for number, each in enumerate(itertools.islice(messages, _BROKER_CASES), start=1):
            with suppress(SkylaneError, ValueError):  # MQTT does not allow such a topic.
                bus.publish(each.topic, each.payload, qos=1, properties=each.properties)
            if number % _MAX_IN_PROGRESS == 0:
                asking.ask()
        asking.ask()
    return answers.total()


class _Asking:
    """Asks a worker for its readiness: when it replies, it has read everything that was sent before."""

    def __init__(self, bus: MqttBus, worker: str) -> None:
        self._bus = bus
        self._topic = topics.CONTROL.of(worker=worker, verb=Verb.READY)
        self._answered = threading.Event()
        self._nonces = itertools.count()
        bus.subscribe(topics.REPLIES.filter(operator=_ASKER), 1, lambda _: self._answered.set())

    def ask(self) -> None:
        """Asks until the worker replies; repeats the request if too many requests were waiting.

        Raises:
            RigError: no reply arrived.
        """
        self._answered.clear()
        for _ in range(round(_ANSWER_S)):
            self._bus.publish(
                self._topic, pack_request(ControlRequest(_ASKER, f"n{next(self._nonces)}", Verb.READY)), qos=1
            )
            if self._answered.wait(1.0):
                return
        raise RigError(f"the worker did not answer for {_ANSWER_S:g} s")


def _accounted(results: Sequence[dict[str, Any]]) -> str:
    """Returns the sums of how messages ended, as text."""
    total: Counter[str] = Counter()
    for result in results:
        total.update(result["accounted"])
    return ", ".join(f"{name} {number:,}" for name, number in total.most_common() if number)


def _begin_peak(pid: int) -> float:
    """Resets the peak memory of a process and returns its resident memory in MB."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf-8")
    return _peak_mb(pid)


def _peak_mb(pid: int) -> float:
    """Returns the peak memory of a process since `_begin_peak`, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3


@pytest.mark.parametrize("floods", [False, True])
def test_a_worker_answers_or_counts_every_broken_message(*, floods: bool) -> None:
    """The scenario sends a million broken messages; this test sends some of each kind."""
    result = attack_worker(2500, seed=5, floods=floods)
    assert (result.delivered + result.unsubscribed, result.unaccounted) == (2500, 0), result
    for name in ("masks published", "replies published", "unreadable", "frame_topic", "control_refused_unreadable"):
        assert result.accounted[name], name


def test_a_vehicle_accepts_or_counts_every_broken_message(tmp_path: Path) -> None:
    """Any worker may send a vehicle any bytes."""
    result = attack_vehicle(2500, 5, tmp_path / "run")
    assert (result.delivered + result.unsubscribed, result.unaccounted) == (2500, 0), result
    for name in ("answered", "unreadable", "late_or_repeated", "echo_unreadable", "echo_topic"):
        assert result.accounted[name], name
