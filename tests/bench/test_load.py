from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from bench.load import (
    ClientTally,
    LoadClient,
    LoadImage,
    SaturationPlan,
    gateway_round,
    offered_rates_hz,
    run_closed_loop,
    run_open_loop,
    saturation_round,
)
from edge.config import EdgeConfig
from edge.transports.mqtt_transport import MqttTransport, vehicle_will
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings, expected_labels
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.messages.frame import FrameMessage
from shared.messages.topics import FrameId
from shared.mqtt.broker_options import BrokerOptions
from shared.runlog.latency_log import Outcome

_S = 10**9
HEIGHT, WIDTH = 16, 24
WAIT_S = 60.0

Connect = Callable[..., LoadClient]


@pytest.fixture
def model(mosquitto_url: str) -> Iterator[str]:
    """Runs a worker that computes its masks from the images, behind a real broker; yields its model's name."""
    name = f"load-{uuid4().hex[:8]}"
    settings = NullWorkerSettings(worker=name, model=name, height=HEIGHT, width=WIDTH, labels_from_pixels=True)
    with NullWorkerProcess(mosquitto_url, settings):
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
        stamp_ns=1,
        data=image_codecs.encode(pixels, Layout.RGB8, "png", 85),
    )
    return LoadImage(message, expected_labels(pixels))


@pytest.mark.mosquitto
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


@pytest.mark.mosquitto
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


@pytest.mark.mosquitto
def test_late_masks_do_not_count_as_answered(model: str, connect: Connect) -> None:
    """Capacity spent on late masks is wasted, and the throughput must show it."""
    client = connect([_image(model)], window=8, deadline_ms=0)
    run_open_loop([client], [20.0], 0.5)
    assert (client.tally.answered_ns, client.tally.latencies_ms) == ([], [])
    assert client.tally.outcomes == {Outcome.EXPIRED: 10}


@pytest.mark.mosquitto
def test_a_frame_without_a_subscriber_is_dropped(connect: Connect) -> None:
    """The broker reports it, and the frame leaves the window."""
    client = connect([_image("unserved")], window=1, deadline_ms=1000, is_served=False)
    run_open_loop([client], [20.0], 0.5)
    assert client.tally.outcomes == {Outcome.DROPPED: 10}


def _tally(name: str, answered_s: list[float], **outcomes: int) -> ClientTally:
    answered_ns = [round(at * _S) for at in answered_s]
    return ClientTally(name, "mqtt", sum(outcomes.values()), Counter(outcomes), answered_ns)


def test_only_masks_within_the_round_count() -> None:
    """Clients connect at its start, and the last frames are answered after its end: both would change the rate."""
    tallies = [_tally("a", [1, 3, 4, 13], answered=4), _tally("b", [2.5, 5, 11.9], answered=3, dropped=1)]
    result = gateway_round(tallies, (0, 12 * _S), bare_hz=1.0)
    assert result["answers"] == {"a": 2, "b": 3}
    assert result["answered_hz"] == pytest.approx(0.5)
    assert result["ratio"] == pytest.approx(0.5)
    assert result["least_to_most"] == pytest.approx(2 / 3)
    assert result["outcomes"] == {"answered": 7, "unreachable": 1}


def test_a_client_without_masks_lowers_the_fairness() -> None:
    """An endpoint that starves must not vanish in the mean."""
    result = gateway_round([_tally("a", [3, 4]), _tally("b", [])], (0, 12 * _S), bare_hz=1.0)
    assert result["jain"] == pytest.approx(0.5)
    assert result["least_to_most"] == 0


_SPAN_NS = (0, 12 * _S)


def _vehicle_tally(offered: int, answered: int) -> ClientTally:
    """A vehicle whose masks arrived in time, evenly from the third second to the last."""
    outcomes = Counter({"answered": answered, "dropped": offered - answered})
    answered_ns = [2 * _S + place * 10 * _S // answered for place in range(answered)]
    return ClientTally("car", "mqtt", offered, outcomes, answered_ns, [100.0] * answered)


def test_the_offered_loads_sum_to_the_factor() -> None:
    """A greedy vehicle changes the distribution of the load, not its sum."""
    plan = SaturationPlan(models=Path("models"), vehicles=8, factor=2.0)
    for is_greedy in (False, True):
        rates = offered_rates_hz(plan, 10.0, is_greedy=is_greedy)
        assert sum(rates) == pytest.approx(20.0)
        assert max(rates) / min(rates) == pytest.approx(10.0 if is_greedy else 1.0)


def test_equal_vehicles_with_equal_throughput_are_fair() -> None:
    """Jain's index is 1, and every frame is counted."""
    result = saturation_round("equal", [2.0] * 4, [_vehicle_tally(20, 10)] * 4, _SPAN_NS, 4.0)
    assert [result["jain"], result["share"]] == pytest.approx([1.0, 1.0])
    assert result["unaccounted"] == 0
    assert result["outcomes"] == {"answered": 40, "dropped": 40}


def test_a_greedy_vehicle_that_displaces_others_lowers_the_fairness() -> None:
    """A vehicle with ten times the load may only use what the others leave."""
    rates_hz = [10.0, 1.0, 1.0]
    even = [_vehicle_tally(100, 20), _vehicle_tally(10, 10), _vehicle_tally(10, 10)]
    fair = saturation_round("greedy", rates_hz, even, _SPAN_NS, 4.0)
    assert [fair["jain"], fair["greedy_share"]] == pytest.approx([1.0, 1.0])
    uneven = [_vehicle_tally(100, 34), _vehicle_tally(10, 3), _vehicle_tally(10, 3)]
    unfair = saturation_round("greedy", rates_hz, uneven, _SPAN_NS, 4.0)
    assert unfair["jain"] < 0.7
    assert unfair["greedy_share"] is not None
    assert unfair["greedy_share"] > 1.5


def test_masks_after_the_end_of_a_round_do_not_count_as_throughput() -> None:
    """The queue is answered after the round; ten frames of 150 would add seven per cent."""
    answered_ns = [1 * _S, 3 * _S, 4 * _S, 11 * _S, 12 * _S, 13 * _S]
    tally = ClientTally("car", "mqtt", 6, Counter(answered=6), answered_ns, [100.0] * 6)
    result = saturation_round("equal", [1.0], [tally], _SPAN_NS, 1.0)
    assert result["in_time_hz"] == pytest.approx(0.3)
    assert result["outcomes"] == {"answered": 6}
