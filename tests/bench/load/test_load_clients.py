from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from uuid import uuid4

import numpy as np
import pytest

from bench.load.load_clients import ClientTally, LoadClient, LoadImage, run_closed_loop, run_open_loop
from edge.config import EdgeConfig
from edge.transports.mqtt_transport import MqttTransport, vehicle_will
from ops.processes.null_worker import NullWorker, NullWorkerSettings, expected_labels
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.messages.frame import FrameMessage
from shared.messages.topics import FrameId
from shared.mqtt.broker_options import BrokerOptions
from shared.runlog.latency_log import Outcome

pytestmark = pytest.mark.mosquitto
HEIGHT, WIDTH = 16, 24
WAIT_S = 60.0

Connect = Callable[..., LoadClient]


@pytest.fixture
def model(mosquitto_url: str) -> Iterator[str]:
    """Runs a worker that computes its masks from the images, behind a real broker; yields its model's name."""
    name = f"load-{uuid4().hex[:8]}"
    settings = NullWorkerSettings(worker=name, model=name, height=HEIGHT, width=WIDTH, labels_from_pixels=True)
    with NullWorker(mosquitto_url, settings) as worker:
        assert worker.wait_until_ready()
        yield name


@pytest.fixture
def connect(mosquitto_url: str) -> Iterator[Connect]:
    """Connects clients; a model without a worker needs `is_served=False`."""
    with ExitStack() as stack:

        def open_client(
            images: list[LoadImage], window: int, deadline_ms: float | None = None, *, is_served: bool = True
        ) -> LoadClient:
            name, model = f"car-{uuid4().hex[:8]}", images[0].message.model
            bus = BrokerOptions(mosquitto_url).open(name, vehicle_will(name, "s1"))
            transport = stack.enter_context(closing(MqttTransport(bus, EdgeConfig(vehicle=name, model=model), "s1")))
            if is_served:
                transport.wait_for_card(WAIT_S)
            return LoadClient(ClientTally(name, "mqtt"), "s1", transport, images, window, deadline_ms)

        yield open_client


def _image(model: str, seed: int = 1) -> LoadImage:
    pixels = np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    message = FrameMessage(
        id=FrameId("nobody", "front", "s", 1),
        model=model,
        layout=Layout.RGB8,
        shape=pixels.shape,
        codec="png",
        geometry=geometry.plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
        frame_stamp_ns=1,
        data=image_codecs.encode(pixels, Layout.RGB8, "png", 85),
    )
    return LoadImage(message, expected_labels(pixels))


def test_every_mask_is_compared_with_that_of_its_image(model: str, connect: Connect) -> None:
    """One wrong pixel per mask must be counted, and right masks must not be."""
    images = [_image(model, seed) for seed in range(3)]
    assert images[0].mask is not None
    wrong = images[0].mask.copy()
    wrong[0, 0] ^= 1
    clients = [connect(images, window=2), connect([LoadImage(images[0].message, wrong)], window=2)]
    right, broken = (client.tally for client in clients)
    begin_ns, end_ns = run_closed_loop(clients, 0.3)
    while min(len(right.answered_ns), len(broken.answered_ns)) < 2:  # A busy machine may need more time.
        _, end_ns = run_closed_loop(clients, 0.3)
    assert begin_ns < end_ns
    for tally in (right, broken):
        assert set(tally.outcomes) == {Outcome.ANSWERED}
        assert len(tally.answered_ns) == len(tally.inferences) == tally.outcomes[Outcome.ANSWERED] == tally.offered >= 2
        assert all(begin_ns <= begin <= end <= tally.answered_ns[-1] for begin, end in tally.inferences)
    assert right.wrong_pixels == 0
    assert broken.wrong_pixels == len(broken.answered_ns)


def test_every_offered_frame_has_an_outcome(model: str, connect: Connect) -> None:
    """Each client has its own rate, and counts its own frames."""
    clients = [connect([_image(model)], window=8, deadline_ms=60_000) for _ in range(3)]
    begin_ns, end_ns = run_open_loop(clients, [50.0, 20.0, 0.0], 1.0)
    assert end_ns - begin_ns == 10**9
    assert [client.tally.offered for client in clients] == [50, 20, 0]
    for tally in (client.tally for client in clients):
        assert tally.outcomes.total() == tally.offered
        assert set(tally.outcomes) <= {Outcome.ANSWERED, Outcome.DROPPED}
        assert tally.outcomes[Outcome.ANSWERED] == len(tally.answered_ns) == len(tally.latencies_ms)
        assert all(at_ns > begin_ns for at_ns in tally.answered_ns)
    assert clients[0].tally.answered_ns


def test_late_masks_do_not_count_as_answered(model: str, connect: Connect) -> None:
    """Capacity spent on late masks is wasted, and the throughput must show it."""
    client = connect([_image(model)], window=8, deadline_ms=0)
    run_open_loop([client], [20.0], 0.5)
    assert (client.tally.answered_ns, client.tally.latencies_ms) == ([], [])
    assert client.tally.outcomes == {Outcome.EXPIRED: 10}


def test_a_frame_without_a_subscriber_is_dropped(connect: Connect) -> None:
    """The broker reports it, and the frame leaves the window."""
    client = connect([_image("unserved")], window=1, deadline_ms=1000, is_served=False)
    run_open_loop([client], [20.0], 0.5)
    assert client.tally.outcomes == {Outcome.DROPPED: 10}
