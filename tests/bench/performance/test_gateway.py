from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import numpy as np
import pytest

from bench.load.gateway_load import ClientTally, GatewayClient, ReferenceImage, run_together
from bench.load.null_worker import NullWorker, NullWorkerSettings, expected_labels
from bench.performance.gateway import summarise_round
from edge.config import EdgeConfig
from edge.transports.mqtt.transport import MqttTransport, vehicle_will
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.messages.frame import FrameMessage
from shared.messages.topics import FrameId
from shared.network.broker_options import BrokerOptions

_S = 10**9
_HEIGHT, _WIDTH = 16, 24
_WAIT_S = 60.0


def _tally(name: str, answered_s: list[float], **outcomes: int) -> ClientTally:
    return ClientTally(name, "mqtt", tuple(round(at * _S) for at in answered_s), (), outcomes, 0)


def test_only_masks_within_the_round_count() -> None:
    """Clients connect at its start, and the last frames are answered after its end: both would change the rate."""
    tallies = [_tally("a", [1, 3, 4, 13], answered=4), _tally("b", [2.5, 5, 11.9], answered=3, overloaded=1)]
    result = summarise_round(tallies, (0, 12 * _S), bare_hz=1.0)
    assert result.answers == {"a": 2, "b": 3}
    assert result.answered_hz == pytest.approx(0.5)
    assert result.ratio == pytest.approx(0.5)
    assert result.least_to_most == pytest.approx(2 / 3)
    assert result.outcomes == {"answered": 7, "overloaded": 1}


def test_a_client_without_masks_lowers_the_fairness() -> None:
    """An endpoint that starves must not vanish in the mean."""
    result = summarise_round([_tally("a", [3, 4]), _tally("b", [])], (0, 12 * _S), bare_hz=1.0)
    assert result.jain == pytest.approx(0.5)
    assert result.least_to_most == 0


@pytest.fixture
def model(mosquitto_url: str) -> Iterator[str]:
    """Runs a worker that computes its masks from the images, behind a real broker; yields its model's name."""
    name = f"doors-{uuid4().hex[:8]}"
    settings = NullWorkerSettings(worker=name, model=name, height=_HEIGHT, width=_WIDTH, labels_from_pixels=True)
    with NullWorker(mosquitto_url, settings) as worker:
        assert worker.wait_until_ready()
        yield name


def _image(model: str, seed: int) -> ReferenceImage:
    pixels = np.random.default_rng(seed).integers(0, 256, (_HEIGHT, _WIDTH, 3), np.uint8)
    message = FrameMessage(
        id=FrameId("nobody", "front", "s", 1),
        model=model,
        layout=Layout.RGB8,
        shape=pixels.shape,
        codec="png",
        geometry=geometry.plan(Resize.CROP, _HEIGHT, _WIDTH, _HEIGHT, _WIDTH),
        frame_stamp_ns=1,
        data=image_codecs.encode(pixels, Layout.RGB8, "png", 85),
    )
    return ReferenceImage(message, pixels, expected_labels(pixels))


@pytest.mark.mosquitto
def test_every_mask_is_compared_with_that_of_its_image(mosquitto_url: str, model: str) -> None:
    """One wrong pixel per mask must be counted, and right masks must not be."""
    images = [_image(model, seed) for seed in range(3)]
    wrong = images[0].mask.copy()
    wrong[0, 0] ^= 1
    clients = []
    for name, given in (
        ("right", images),
        ("wrong", [ReferenceImage(images[0].message, images[0].pixels, wrong)]),
    ):
        bus = BrokerOptions(mosquitto_url).open(f"{name}-{model}", vehicle_will(f"{name}-{model}", "s1"))
        transport = MqttTransport(bus, EdgeConfig(vehicle=f"{name}-{model}", model=model), "s1")
        transport.wait_for_card(_WAIT_S)
        clients.append(GatewayClient(f"{name}-{model}", "mqtt", "s1", transport, given, window=2))
    with closing(clients[0].transport), closing(clients[1].transport):
        begin_ns, end_ns = run_together(clients, 0.3)
        while any(len(client.tally().answered_ns) < 2 for client in clients):  # A busy machine may need more time.
            _, end_ns = run_together(clients, 0.3)
    right, broken = (client.tally() for client in clients)
    assert begin_ns < end_ns
    for tally in (right, broken):
        assert {name for name, count in tally.outcomes.items() if count} == {"answered"}
        assert len(tally.answered_ns) == len(tally.inferences) == tally.outcomes["answered"] >= 2
        assert all(begin_ns <= begin <= end <= tally.answered_ns[-1] for begin, end in tally.inferences)
    assert right.wrong_pixels == 0
    assert broken.wrong_pixels == len(broken.answered_ns)


@pytest.mark.mosquitto
def test_a_frame_without_a_worker_is_counted_as_unreachable(mosquitto_url: str) -> None:
    """The broker reports that there is no subscriber; the client continues, and the benchmark ends."""
    name = f"alone-{uuid4().hex[:8]}"
    bus = BrokerOptions(mosquitto_url).open(name, vehicle_will(name, "s1"))
    with closing(MqttTransport(bus, EdgeConfig(vehicle=name, model=name), "s1")) as transport:
        client = GatewayClient(name, "mqtt", "s1", transport, [_image(name, 1)], window=1)
        while not client.tally().outcomes.get("unreachable"):
            run_together([client], 0.2)
    outcomes = client.tally().outcomes
    assert outcomes["unreachable"] >= 1
    assert "answered" not in outcomes
