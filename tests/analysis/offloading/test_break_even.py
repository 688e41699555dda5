import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.logs.run_log import RunLog
from analysis.offloading import OffloadingError, worth

_BROKER_MS = 2.0
_CODEC_MS = {"encoded_ms": 3.0, "decoded_ms": 2.0, "mask_encoded_ms": 0.5, "mask_decoded_ms": 0.5}
_MANIFEST = {
    "source": {"sha256": "a" * 64},
    "model": {"sha256": "b" * 64, "name": "road"},
    "configuration": {"broker": "mqtt://127.0.0.1:1883", "closed_loop": True, "window": 1},
}


def _run(
    name: str,
    infer_ms: float,
    *,
    delay_ms: float = 0.0,
    mbps: float = math.inf,
    frames: int = 200,
    unanswered: int = 0,
    manifest: Mapping[str, Any] = _MANIFEST,
) -> RunLog:
    """A run with one frame in flight over such a link; frames with the same index have the same content in every run."""
    content = np.random.default_rng(1)
    bytes_up = content.integers(90_000, 110_000, frames)
    infers = infer_ms * content.lognormal(0, 0.05, frames)
    noise = np.random.default_rng(len(name)).normal(0, 0.3, frames)
    crossing = _BROKER_MS + 2 * delay_ms + 8 * (bytes_up + 4000) / (mbps * 1000)
    rows = pd.DataFrame(
        {
            "camera": "/left",
            "frame_index": pd.array(np.arange(frames), "Int64"),
            "outcome": ["lost"] * unanswered + ["answered"] * (frames - unanswered),
            "total_ms": infers + crossing + sum(_CODEC_MS.values()) + 1 + noise,
            "crossing_ms": crossing,
            "bytes_up": pd.array(bytes_up, "Int64"),
            "bytes_down": pd.array([4000] * frames, "Int64"),
            "clock_error_ms": _BROKER_MS / 8 + delay_ms,
            **_CODEC_MS,
        }
    )
    rows.loc[rows["outcome"] != "answered", ["total_ms", "crossing_ms", "clock_error_ms", *_CODEC_MS]] = math.nan
    return RunLog(Path(name), name, rows, manifest, pd.DataFrame(), ())


def test_a_fast_cloud_over_a_good_link_is_worth_it() -> None:
    """200 ms on the vehicle, 40 ms in the cloud, 10 ms of delay."""
    found = worth(_run("local", 200), _run("remote", 40, delay_ms=10, mbps=100))
    assert found.sentence.startswith("Worth it on these 200 frames of one run each: an offloaded mask arrived 13")
    assert found.local.difference.high < 0
    assert found.local.share_faster == 1.0
    assert found.frames == 200
    assert found.local.p50.low < found.local.p50.value < found.local.p50.high


def test_a_slow_link_is_not_worth_it() -> None:
    """The same cloud over 2 Mbit/s: the transfer of a frame takes 400 ms."""
    found = worth(_run("local", 200), _run("remote", 40, delay_ms=10, mbps=2))
    assert found.sentence.startswith("Not worth it on these 200 frames of one run each: an offloaded mask arrived ")
    assert " later than from the local worker" in found.sentence
    assert found.local.share_faster == 0.0
    assert found.local.delay_ms is None
    assert "No delay is short enough to make it faster at the link's 2 Mbit/s." in found.local.reason


def test_an_insignificant_difference_is_reported_as_such() -> None:
    """The cloud is exactly as fast as the vehicle, or there are too few frames."""
    found = worth(_run("local", 100), _run("distant", 100))
    assert found.sentence.startswith("These 200 frames do not show whether offloading is faster than the local worker")
    assert "Too few" in worth(_run("local", 100, frames=5), _run("remote", 10, frames=5)).sentence


def test_both_are_equally_fast_over_the_break_even_link() -> None:
    """A simulated run over the computed link has the local run's median."""
    local, remote = _run("local", 200), _run("remote", 40, delay_ms=10, mbps=100)
    found = worth(local, remote).local
    assert found.bandwidth_mbps is not None
    assert found.delay_ms is not None
    slower = _run("remote", 40, delay_ms=10, mbps=found.bandwidth_mbps)
    further = _run("remote", 40, delay_ms=found.delay_ms, mbps=100)
    for replayed in (slower, further):
        assert float(replayed.frames["total_ms"].median()) == pytest.approx(found.p50.value, abs=0.5)


def test_the_link_of_the_remote_run_is_estimated_from_its_frames() -> None:
    """The model reproduces the run with the estimated delay and bandwidth."""
    found = worth(_run("local", 200), _run("remote", 40, delay_ms=10, mbps=100))
    assert found.link_delay_ms == pytest.approx(10)
    assert found.link_bandwidth_mbps == pytest.approx(100, rel=0.01)
    assert found.broker_ms == pytest.approx(_BROKER_MS)
    assert found.modelled_p50_ms == pytest.approx(found.remote_p50.value, rel=0.01)


def test_inference_in_the_vehicles_process_is_faster_than_a_local_worker() -> None:
    """It needs neither broker nor codec, 8 ms less here, which can change the verdict."""
    found = worth(_run("local", 50), _run("remote", 44))
    assert found.local.difference.high < 0 < found.in_process.difference.low
    assert found.in_process.p50.value == pytest.approx(found.local.p50.value - _BROKER_MS - sum(_CODEC_MS.values()))
    assert found.in_process.sentence.startswith("Not worth it")


def test_a_slower_cloud_has_no_break_even_link() -> None:
    """The reason is stated."""
    found = worth(_run("local", 50), _run("remote", 80, delay_ms=5, mbps=100)).local
    assert (found.bandwidth_mbps, found.delay_ms) == (None, None)
    assert found.reason.startswith("No link makes it faster: without any delay and transfer an offloaded frame takes 8")


def test_unanswered_frames_are_reported() -> None:
    """Fast masks for a part of the frames are not sufficient."""
    found = worth(_run("local", 200), _run("remote", 40, unanswered=50))
    assert (found.local_unanswered, found.remote_unanswered, found.frames) == (0.0, 0.25, 150)
    assert found.sentence.endswith("Unanswered: 0.0 % of the frames locally, 25.0 % offloaded.")


def test_frames_are_matched_by_their_place_in_the_source() -> None:
    """Masks may arrive in any order, and a bag in a loop contains every frame several times."""
    local, remote = _run("local", 200), _run("remote", 40)
    shuffled = remote.frames.sample(frac=1, random_state=1)
    again = RunLog(remote.folder, "remote", shuffled, _MANIFEST, remote.resources, ())
    assert worth(local, again).local.difference == worth(local, remote).local.difference
    looped = [
        RunLog(run.folder, run.name, pd.concat([run.frames] * 2, ignore_index=True), _MANIFEST, run.resources, ())
        for run in (local, remote)
    ]
    assert worth(*looped).frames == 400


@pytest.mark.parametrize(
    ("remote", "reason"),
    [
        ({"manifest": _MANIFEST | {"source": {"sha256": "c" * 64}}}, r"different sources \(a{12} and c{12}\)"),
        ({"unanswered": 200}, r"no frame was answered in both local \(200 answered\) and remote \(0\)"),
    ],
)
def test_runs_without_common_frames_are_rejected(remote: dict[str, Any], reason: str) -> None:
    """Frames of different drives, or of a worker that answered nothing, cannot be compared."""
    with pytest.raises(OffloadingError, match=reason):
        worth(_run("local", 200), _run("remote", 40, **remote))


def test_differences_of_the_runs_are_reported_as_caveats() -> None:
    """Source, model, pace and broker differ, or are unknown."""
    assert worth(_run("local", 200), _run("remote", 40)).caveats == ()
    different = {
        "source": {},
        "model": {"sha256": "d" * 64, "name": "road-large"},
        "configuration": {"broker": "mqtt://cloud.example:1883", "closed_loop": True, "window": 4},
    }
    caveats = " ".join(worth(_run("local", 200, manifest=different), _run("remote", 40)).caveats)
    assert "contains no source" in caveats
    assert "road-large locally, road remotely" in caveats
    assert "paced differently (window)" in caveats
    assert "cloud.example" in caveats
    assert len(worth(_run("local", 200, manifest={}), _run("remote", 40, manifest={})).caveats) == 2


def test_the_verdict_is_json() -> None:
    """`skylane report --json` prints it."""
    found = worth(_run("local", 200), _run("remote", 40, delay_ms=10, mbps=100))
    assert json.loads(json.dumps(asdict(found), allow_nan=False))["local"]["share_faster"] == 1.0
