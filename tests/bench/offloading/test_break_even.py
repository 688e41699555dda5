import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bench.logs.run_log import RunLog
from bench.offloading.break_even import OffloadingError, worth

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
    """A run of one frame in flight over such a link; frames of one place hold the same in every run."""
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
    """The plain case: 200 ms at the vehicle, 40 in the cloud, 10 ms away."""
    found = worth(_run("local", 200), _run("remote", 40, delay_ms=10, mbps=100))
    assert found.sentence.startswith("Worth it on these 200 frames of one run each: offloaded, a mask came 13")
    assert found.local.difference.high < 0
    assert found.local.share_faster == 1.0
    assert found.frames == 200
    assert found.local.p50.low < found.local.p50.value < found.local.p50.high


def test_a_slow_link_is_not_worth_it() -> None:
    """The same cloud behind 2 Mbit/s: each frame takes 400 ms to get there."""
    found = worth(_run("local", 200), _run("remote", 40, delay_ms=10, mbps=2))
    assert found.sentence.startswith("Not worth it on these 200 frames of one run each: offloaded, a mask came ")
    assert " later than from the local worker" in found.sentence
    assert found.local.share_faster == 0.0
    assert found.local.delay_ms is None
    assert "No delay is short enough to make it faster at the link's 2 Mbit/s." in found.local.reason


def test_what_cannot_be_told_is_said_to_be_so() -> None:
    """A cloud exactly as fast as the vehicle."""
    found = worth(_run("local", 100), _run("distant", 100))
    assert found.sentence.startswith("Whether offloading is faster than the local worker cannot be told")
    assert "Too few" in worth(_run("local", 100, frames=5), _run("remote", 10, frames=5)).sentence


def test_the_link_it_turns_at_is_the_one_that_makes_both_equal() -> None:
    """Played again over the link that was found, both take as long."""
    local, remote = _run("local", 200), _run("remote", 40, delay_ms=10, mbps=100)
    found = worth(local, remote).local
    assert found.bandwidth_mbps is not None
    assert found.delay_ms is not None
    slower = _run("remote", 40, delay_ms=10, mbps=found.bandwidth_mbps)
    further = _run("remote", 40, delay_ms=found.delay_ms, mbps=100)
    for replayed in (slower, further):
        assert float(replayed.frames["total_ms"].median()) == pytest.approx(found.p50.value, abs=0.5)


def test_the_link_of_the_remote_run_is_told_from_its_frames() -> None:
    """A turning point is given at the delay, or the bandwidth, that the run had; and the model gives the run back."""
    found = worth(_run("local", 200), _run("remote", 40, delay_ms=10, mbps=100))
    assert found.link_delay_ms == pytest.approx(10)
    assert found.link_bandwidth_mbps == pytest.approx(100, rel=0.01)
    assert found.broker_ms == pytest.approx(_BROKER_MS)
    assert found.modelled_p50_ms == pytest.approx(found.remote_p50.value, rel=0.01)


def test_inferring_in_the_vehicles_own_process_is_the_harder_rival() -> None:
    """It needs neither broker nor codec: 8 ms less here, which can turn the answer."""
    found = worth(_run("local", 50), _run("remote", 44))
    assert found.local.difference.high < 0 < found.in_process.difference.low
    assert found.in_process.p50.value == pytest.approx(found.local.p50.value - _BROKER_MS - sum(_CODEC_MS.values()))
    assert found.in_process.sentence.startswith("Not worth it")


def test_a_slower_cloud_is_worth_it_over_no_link() -> None:
    """Then there is no turning point, and why is said."""
    found = worth(_run("local", 50), _run("remote", 80, delay_ms=5, mbps=100)).local
    assert (found.bandwidth_mbps, found.delay_ms) == (None, None)
    assert found.reason.startswith("No link makes it faster: without any delay and transfer an offloaded frame takes 8")


def test_frames_that_never_came_back_are_said_beside_the_answer() -> None:
    """Fast masks for half of the frames are not what was asked for."""
    found = worth(_run("local", 200), _run("remote", 40, unanswered=50))
    assert (found.local_unanswered, found.remote_unanswered, found.frames) == (0.0, 0.25, 150)
    assert found.sentence.endswith("Unanswered: 0.0 % of the frames locally, 25.0 % offloaded.")


def test_frames_are_matched_by_their_place_in_the_source() -> None:
    """Masks come back in any order; a bag that is looped has each frame again."""
    local, remote = _run("local", 200), _run("remote", 40)
    shuffled = remote.frames.sample(frac=1, random_state=1)
    again = RunLog(remote.folder, "remote", shuffled, _MANIFEST, remote.resources, ())
    assert worth(local, again).local.difference == worth(local, remote).local.difference
    looped = [
        RunLog(run.folder, run.name, pd.concat([run.frames] * 2, ignore_index=True), _MANIFEST, run.resources, ())
        for run in (local, remote)
    ]
    assert worth(*looped).frames == 400


def test_runs_of_different_sources_are_refused() -> None:
    """Another drive's frames take other times; nothing could be said of either."""
    other = dict(_MANIFEST) | {"source": {"sha256": "c" * 64}}
    with pytest.raises(OffloadingError, match=r"different sources \(aaaaaaaaaaaa and cccccccccccc\)"):
        worth(_run("local", 200), _run("remote", 40, manifest=other))


def test_runs_without_a_common_answer_are_refused() -> None:
    """A worker that answered nothing has no speed."""
    with pytest.raises(OffloadingError, match=r"no frame was answered in both local \(200 answered\) and remote \(0\)"):
        worth(_run("local", 200), _run("remote", 40, unanswered=200))


def test_what_makes_the_runs_unlike_is_told() -> None:
    """The answer still stands for something, but the reader must know for what."""
    assert worth(_run("local", 200), _run("remote", 40)).caveats == ()
    unlike = {
        "source": {},
        "model": {"sha256": "d" * 64, "name": "road-large"},
        "configuration": {"broker": "mqtt://cloud.example:1883", "closed_loop": True, "window": 4},
    }
    told = " ".join(worth(_run("local", 200, manifest=unlike), _run("remote", 40)).caveats)
    assert "names no source" in told
    assert "road-large locally, road remotely" in told
    assert "paced differently (window)" in told
    assert "cloud.example" in told
    assert len(worth(_run("local", 200, manifest={}), _run("remote", 40, manifest={})).caveats) == 2


def test_the_verdict_is_json() -> None:
    """`skylane report --json` prints it."""
    found = worth(_run("local", 200), _run("remote", 40, delay_ms=10, mbps=100))
    assert json.loads(json.dumps(asdict(found), allow_nan=False))["local"]["share_faster"] == 1.0
