"""Successive processes with one vehicle name on a real broker: delayed messages of a dead one must not end a live one."""

import os
import queue
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from uuid import uuid4

import pytest

from ops.broker.broker import Broker
from shared.errors import SkylaneError
from shared.messages.node_status import NodeState, NodeStatus, pack_status, unpack_status
from shared.messages.topics import VEHICLE_STATUS
from shared.mqtt.bus import Delivery, Will
from shared.mqtt.name_guard import NameGuard, NameTakenError, client_id
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address
from tests.pipeline.rig import WAIT_S, connect
from tests.support.faults.mqtt_proxy import MqttProxy, Packet

NAME = "car-1"
TOPIC = VEHICLE_STATUS.of(vehicle=NAME)
LIVES = 8
MOST_S = 0.05
pytestmark = pytest.mark.mosquitto


class Life:
    """One process with the vehicle's name, behind a link that can delay its messages."""

    def __init__(self, broker: Broker, stack: ExitStack, ended: "queue.SimpleQueue[Life] | None" = None) -> None:
        """Connects, claims the name and announces itself. `ended` receives lives that give up."""
        self.session = uuid4().hex[:12]
        self.gave_up: list[SkylaneError] = []
        self._ended = ended
        self.flowing = threading.Event()
        self.flowing.set()
        self.link = stack.enter_context(MqttProxy((broker.listener.host, broker.listener.port)))
        stack.callback(self.flowing.set)
        self.link.to_broker = self._pass_on
        self.claim = NameGuard("vehicle", NAME, self.session, announce=self.announce, give_up=self._give_up)
        self.bus: MqttBus | None = None
        self.bus = MqttBus(
            Address.parse(self.link.url),
            client_id("vehicle", NAME),
            will=Will(TOPIC, self._status(NodeState.OFFLINE)),
            on_connected=self.announce,
        )
        stack.callback(self.bus.close)
        self.claim.open(self.bus)
        self.announce()

    def announce(self) -> None:
        """Publishes the online status."""
        if self.bus is not None and not self.claim.is_lost:
            self.bus.publish(TOPIC, self._status(NodeState.ONLINE), qos=1, retained=True)

    def die(self) -> None:
        """Closes the connection like a killed process: messages in transit still arrive."""
        assert self.bus is not None
        self.link.hang_up()
        self.bus.close()

    def _give_up(self, why: SkylaneError) -> None:
        self.gave_up.append(why)
        if self._ended is not None:
            self._ended.put(self)

    def _status(self, state: NodeState) -> bytes:
        return pack_status(NodeStatus(state, self.session, age_ms=self.claim.age_ms, rival=self.claim.rival))

    def _pass_on(self, packet: Packet) -> tuple[Packet]:
        assert self.flowing.wait(WAIT_S)
        return (packet,)


class Observer:
    """Follows the status of the name."""

    def __init__(self, broker: Broker, stack: ExitStack) -> None:
        self._last: NodeStatus | None = None
        self._changed = threading.Condition()
        stack.enter_context(connect(broker.url)).subscribe(TOPIC, 1, self._on_status)

    def wait_for(self, life: Life) -> None:
        """Waits until this life is the one that is online."""
        wanted = (NodeState.ONLINE, life.session)
        with self._changed:
            is_online = self._changed.wait_for(
                lambda: self._last and (self._last.state, self._last.session) == wanted, WAIT_S
            )
        assert is_online, self._last

    def _on_status(self, delivery: Delivery) -> None:
        with self._changed:
            self._last = unpack_status(delivery.payload)
            self._changed.notify_all()


@pytest.mark.parametrize("seed", [1, 2])
def test_messages_of_a_dead_process_never_end_a_live_one(seed: int) -> None:
    """A restarted vehicle must keep running, whatever its predecessor left in the link."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        broker = stack.enter_context(Broker.start(kind="mosquitto"))
        observer = Observer(broker, stack)
        life = Life(broker, stack)
        for _ in range(LIVES):
            observer.wait_for(life)
            before = life
            before.flowing.clear()
            for _ in range(chance.randint(0, 3)):
                before.announce()
            time.sleep(chance.uniform(0, MOST_S))
            before.die()
            if chance.random() < 0.3:
                broker = _restart(broker, stack)
            release = threading.Timer(chance.uniform(0, 6 * MOST_S), before.flowing.set)
            release.start()
            life = Life(broker, stack)
            if chance.random() < 0.3:
                life.link.hang_up()
            if chance.random() < 0.3:
                _pause(broker, chance.uniform(0, 4 * MOST_S))
            release.join()
            observer.wait_for(life)
            assert before.gave_up == life.gave_up == []
        observer.wait_for(life)
        assert life.gave_up == []


def test_exactly_one_of_two_simultaneous_starts_goes_on() -> None:
    """If both ended, no vehicle would run; if neither did, two would share a name."""
    chance = random.Random(1)
    with ExitStack() as stack:
        broker = stack.enter_context(Broker.start(kind="mosquitto"))
        observer = Observer(broker, stack)
        gave_up: queue.SimpleQueue[Life] = queue.SimpleQueue()
        for _ in range(LIVES):
            with ThreadPoolExecutor() as pool:
                starting = []
                for _ in range(2):
                    starting.append(pool.submit(Life, broker, stack, gave_up))
                    time.sleep(chance.uniform(0, MOST_S))
            lives = [each.result() for each in starting]
            ended = gave_up.get(timeout=WAIT_S)
            (living,) = [life for life in lives if life is not ended]
            assert isinstance(ended.gave_up[0], NameTakenError)
            ended.die()
            observer.wait_for(living)
            assert living.gave_up == []
            living.die()


def _restart(broker: Broker, stack: ExitStack) -> Broker:
    """Kills a broker, which loses its messages, and restarts it on the same port."""
    os.kill(broker.pid, signal.SIGKILL)
    broker.stop()
    return stack.enter_context(Broker.start(broker.listener.port, kind="mosquitto"))


def _pause(broker: Broker, seconds: float) -> None:
    os.kill(broker.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(broker.pid, signal.SIGCONT)
