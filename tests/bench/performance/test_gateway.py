from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import numpy as np
import pytest

from bench.load.gateway_load import ClientTally, GatewayClient, Sample, run_together
from bench.load.null_worker import NullWorker, NullWorkerSettings, expected_labels
from bench.performance.gateway import judged
from edge.transports.mqtt.transport import MqttTransport, vehicle_will
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.messages.frame import FrameMessage
from shared.messages.topics import FrameId
from shared.network.broker_options import Connection

_S = 10**9
_HEIGHT, _WIDTH = 16, 24
_WAIT_S = 60.0


def _tally(name: str, answered_s: list[float], **outcomes: int) -> ClientTally:
    return ClientTally(name, "mqtt", tuple(round(at * _S) for at in answered_s), (), outcomes, 0)


def test_only_answers_within_the_round_count() -> None:
    """At its start clients are still joining, and after its end the last ones are drained: both would change the rate."""
    tallies = [_tally("a", [1, 3, 4, 13], answered=4), _tally("b", [2.5, 5, 11.9], answered=3, overloaded=1)]
    found = judged(tallies, (0, 12 * _S), bare_hz=1.0)
    assert found.answers == {"a": 2, "b": 3}
    assert found.answered_hz == pytest.approx(0.5)
    assert found.ratio == pytest.approx(0.5)
    assert found.least_to_most == pytest.approx(2 / 3)
    assert found.outcomes == {"answered": 7, "overloaded": 1}


def test_a_client_that_gets_nothing_shows() -> None:
    """One door that starves must not vanish in the mean."""
    found = judged([_tally("a", [3, 4]), _tally("b", [])], (0, 12 * _S), bare_hz=1.0)
    assert found.jain == pytest.approx(0.5)
    assert found.least_to_most == 0


@pytest.fixture
def model(mosquitto_url: str) -> Iterator[str]:
    """A worker whose masks follow from the pictures, behind a real broker; its model's name."""
    name = f"doors-{uuid4().hex[:8]}"
    settings = NullWorkerSettings(worker=name, model=name, height=_HEIGHT, width=_WIDTH, labels_from_pixels=True)
    with NullWorker(mosquitto_url, settings) as worker:
        assert worker.wait_until_ready()
        yield name


def _sample(model: str, seed: int) -> Sample:
    picture = np.random.default_rng(seed).integers(0, 256, (_HEIGHT, _WIDTH, 3), np.uint8)
    message = FrameMessage(
        id=FrameId("nobody", "front", "s", 1),
        model=model,
        layout=Layout.RGB8,
        shape=picture.shape,
        codec="png",
        geometry=geometry.plan(Resize.CROP, _HEIGHT, _WIDTH, _HEIGHT, _WIDTH),
        frame_stamp_ns=1,
        data=image_codecs.encode(picture, Layout.RGB8, "png", 85),
    )
    return Sample(message, picture, expected_labels(picture))


@pytest.mark.mosquitto
def test_every_mask_is_held_against_its_own_picture(mosquitto_url: str, model: str) -> None:
    """A mask of another frame, or one pixel of it, must show in the count; of the right ones none may."""
    samples = [_sample(model, seed) for seed in range(3)]
    wrong = samples[0].mask.copy()
    wrong[0, 0] ^= 1
    clients = []
    for name, given in (("right", samples), ("wrong", [Sample(samples[0].message, samples[0].picture, wrong)])):
        bus = Connection(mosquitto_url).open(f"{name}-{model}", vehicle_will(f"{name}-{model}", "s1"))
        transport = MqttTransport(bus, vehicle=f"{name}-{model}", session="s1", model=model)
        transport.wait_for_card(_WAIT_S)
        clients.append(GatewayClient(f"{name}-{model}", "mqtt", "s1", transport, given, window=2))
    with closing(clients[0].transport), closing(clients[1].transport):
        begun_ns, ended_ns = run_together(clients, 0.3)
        while any(len(client.tally().answered_ns) < 2 for client in clients):  # On a busy machine, again.
            _, ended_ns = run_together(clients, 0.3)
    right, broken = (client.tally() for client in clients)
    assert begun_ns < ended_ns
    for tally in (right, broken):
        assert {name for name, count in tally.outcomes.items() if count} == {"answered"}
        assert len(tally.answered_ns) == len(tally.inferences) == tally.outcomes["answered"] >= 2
        assert all(begun_ns <= begin <= end <= tally.answered_ns[-1] for begin, end in tally.inferences)
    assert right.wrong_pixels == 0
    assert broken.wrong_pixels == len(broken.answered_ns)


@pytest.mark.mosquitto
def test_a_frame_that_nobody_takes_is_counted(mosquitto_url: str) -> None:
    """Without a worker the broker says that nobody listens: the client goes on, and the bench ends."""
    name = f"alone-{uuid4().hex[:8]}"
    bus = Connection(mosquitto_url).open(name, vehicle_will(name, "s1"))
    with closing(MqttTransport(bus, vehicle=name, session="s1", model=name)) as transport:
        client = GatewayClient(name, "mqtt", "s1", transport, [_sample(name, 1)], window=1)
        while not client.tally().outcomes.get("unreachable"):
            run_together([client], 0.2)
    outcomes = client.tally().outcomes
    assert outcomes["unreachable"] >= 1
    assert "answered" not in outcomes
