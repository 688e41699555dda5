from pathlib import Path
from uuid import uuid4

import numpy as np
import pandas as pd
import pytest

from analysis.logs.frame_accounting import FrameAccounts
from bench.fleet.run_record import read_frames
from bench.fleet.vehicle import VehicleGroup
from bench.load import (
    LoadedRound,
    SaturationPlan,
    WrongPixels,
    even_turns,
    gateway_round,
    offered_rates_hz,
    saturation_round,
)
from edge.config import EdgeConfig
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings, expected_labels
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Layout, Pixels
from shared.imaging.geometry import Resize
from shared.messages.frame import FrameMessage
from shared.messages.topics import FrameId
from shared.runlog.latency_log import Outcome

_S = 10**9
_SPAN_NS = (0, 12 * _S)
HEIGHT, WIDTH = 16, 24


def _image(model: str, seed: int) -> tuple[FrameMessage, Pixels]:
    """An image as vehicles send it, and the mask of a worker that computes it from the image."""
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
    return message, expected_labels(pixels)


@pytest.mark.mosquitto
def test_vehicles_send_images_in_turn_and_every_mask_is_compared(mosquitto_url: str, tmp_path: Path) -> None:
    """Each vehicle has its own rate; one wrong pixel per mask must be counted, and right masks must not be."""
    model = f"load-{uuid4().hex[:8]}"
    messages, masks = zip(*(_image(model, seed) for seed in range(3)), strict=True)
    others = [mask.copy() for mask in masks]
    for mask in others:
        mask[0, 0] ^= 1
    wrong = [WrongPixels(masks), WrongPixels(others)]
    settings = NullWorkerSettings(worker=model, model=model, height=HEIGHT, width=WIDTH, labels_from_pixels=True)
    configs = [EdgeConfig(vehicle=f"vehicle-{each}", broker=mosquitto_url, model=model, window=8) for each in (1, 2)]
    with NullWorkerProcess(mosquitto_url, settings), VehicleGroup() as group:
        group.connect(configs, tmp_path, lambda _: messages, *wrong)
        begin_ns, end_ns = group.play(even_turns([50.0, 20.0]), 1.0)
    assert end_ns - begin_ns == _S
    frames = read_frames(tmp_path)
    assert frames["vehicle"].value_counts().to_dict() == {"vehicle-1": 50, "vehicle-2": 20}
    answered = frames[frames["outcome"] == Outcome.ANSWERED]
    assert len(answered)
    assert (answered["batched_ns"] <= answered["inferred_ns"]).all()
    assert [each.count for each in wrong] == [0, len(answered)]


def _round(answered_s: dict[str, list[float]], **outcomes: int) -> LoadedRound:
    """A round with the arrival times of the masks of each vehicle, a tenth of a second after they were due."""
    rows = [
        {"vehicle": name, "outcome": "answered", "due_ns": round(at_s * _S) - _S // 10, "returned_ns": round(at_s * _S)}
        for name, times in answered_s.items()
        for at_s in times
    ]
    columns = ["vehicle", "outcome", "due_ns", "returned_ns", "batched_ns", "inferred_ns"]
    accounts = FrameAccounts()
    accounts.outcomes.update(outcomes)
    return LoadedRound(pd.DataFrame(rows, columns=columns), accounts, dict.fromkeys(answered_s, "mqtt"), _SPAN_NS)


def test_only_masks_within_the_round_count() -> None:
    """The queue fills at its start, and the last frames are answered after its end: both would change the rate."""
    loaded = _round({"a": [1, 3, 4, 13], "b": [2.5, 5, 11.9]}, answered=7, dropped=1)
    result = gateway_round(loaded, 1.0, 0)
    assert result["answers"] == {"a": 2, "b": 3}
    assert result["answered_hz"] == pytest.approx(0.5)
    assert result["ratio"] == pytest.approx(0.5)
    assert result["least_to_most"] == pytest.approx(2 / 3)
    assert result["outcomes"] == {"answered": 7, "unreachable": 1}


def test_a_client_without_masks_lowers_the_fairness() -> None:
    """An endpoint that starves must not vanish in the mean."""
    result = gateway_round(_round({"a": [3, 4], "b": []}), 1.0, 0)
    assert result["jain"] == pytest.approx(0.5)
    assert result["least_to_most"] == 0


def test_the_offered_loads_sum_to_the_factor() -> None:
    """A greedy vehicle changes the distribution of the load, not its sum."""
    plan = SaturationPlan(models=Path("models"), vehicles=8, factor=2.0)
    for is_greedy in (False, True):
        rates = offered_rates_hz(plan, 10.0, is_greedy=is_greedy)
        assert sum(rates) == pytest.approx(20.0)
        assert max(rates) / min(rates) == pytest.approx(10.0 if is_greedy else 1.0)


def _evenly(count: int) -> list[float]:
    """Times from the third second to the last."""
    return [2 + place * 10 / count for place in range(count)]


def test_equal_vehicles_with_equal_throughput_are_fair() -> None:
    """Jain's index is 1, and latencies count from due to arrival."""
    loaded = _round({name: _evenly(10) for name in "abcd"}, answered=40, dropped=40)
    result = saturation_round("equal", [2.0] * 4, loaded, 4.0)
    assert [result["jain"], result["share"]] == pytest.approx([1.0, 1.0])
    assert result["outcomes"] == {"answered": 40, "dropped": 40}
    assert result["latency_ms"]["median"] == pytest.approx(100.0)


def test_a_greedy_vehicle_that_displaces_others_lowers_the_fairness() -> None:
    """A vehicle with ten times the load may only use what the others leave."""
    rates_hz = [10.0, 1.0, 1.0]
    even = _round({"greedy": _evenly(20), "b": _evenly(10), "c": _evenly(10)})
    fair = saturation_round("greedy", rates_hz, even, 4.0)
    assert [fair["jain"], fair["greedy_share"]] == pytest.approx([1.0, 1.0])
    uneven = _round({"greedy": _evenly(34), "b": _evenly(3), "c": _evenly(3)})
    unfair = saturation_round("greedy", rates_hz, uneven, 4.0)
    assert unfair["jain"] < 0.7
    assert unfair["greedy_share"] is not None
    assert unfair["greedy_share"] > 1.5
