"""Presenting beside odd cameras, slow and failing presenters: every frame has a tick with an output or a reason."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from analysis.logs.audit import audit
from cloud.models.loader import ModelLoader
from edge.presenting.presenter import PRESENTERS, ArrivedResult, Output, PresenterEntry, PresenterParts, Tick
from rosbag_tools.writer import BagWriter
from shared.inference.model import Model
from shared.models.repository import Repository
from shared.runlog.latency_log import read_rows
from shared.runlog.presented_log import OutputOrigin, PresentedRow, read_presented
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.rig import check, play, worker
from tests.support.faults.hostile.trigger_pixels import MODEL, Mark
from tests.support.faults.models import make_local_model, marked_pictures
from tests.support.faults.presented import PresentedTicks, taken, write_fusion_file
from tests.support.faults.rig import Rig
from tests.support.local_models import write_segmentation

pytestmark = pytest.mark.mosquitto
HEIGHT, WIDTH = 64, 96
LEVELS = (0, 128, 255)  # Grey levels of the classes.
_STEP_NS = 10**8
_START_NS = 10**18
_TOPIC = "/sensors/camera/{}/image_raw"
_OUTPUTS = (OutputOrigin.REMOTE, OutputOrigin.WARPED)


@dataclass(frozen=True)
class Shot:
    """A frame of a bag: its camera, size, grey level, encoding, and times in steps of 100 ms."""

    at: float
    stamp: float
    camera: str = "left"
    size: tuple[int, int] = (HEIGHT, WIDTH)
    level: int = 0
    encoding: str = "rgb8"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A segmentation whose class of a pixel is the nearest of three grey levels."""
    root = tmp_path_factory.mktemp("models")
    write_segmentation(root, "tiny", HEIGHT, WIDTH, len(LEVELS))
    with ModelLoader(Repository(root)).open("tiny") as loaded:
        yield loaded


@dataclass(frozen=True)
class Played:
    """A run that has ended."""

    rows: list[PresentedRow]
    frames: list[dict[str, str]]
    manifest: dict[str, Any]
    printed: str
    out: Path

    def mask(self, row: PresentedRow) -> Any:
        """Returns the mask that was presented at a tick; None if there is none."""
        name = f"{row.frame_index:06d}.png"
        paths = list((self.out / "presented" / "masks").rglob(name))
        return cv2.imread(str(paths[0]), cv2.IMREAD_UNCHANGED) if paths else None

    def reasons(self) -> Counter[str]:
        """Returns the reasons of ticks without an output, without details."""
        return Counter(row.reason.partition(":")[0] for row in self.rows if row.reason)


Play = Callable[..., Played]


@pytest.fixture
def played(mosquitto_url: str, model: Model, tmp_path: Path) -> Play:
    """Plays a bag or folder with a presenter; checks the balance of ticks and frames.

    On a busy machine, too, every frame is sent and comes in time.
    """
    usual = {"present": "warp", "codec": "raw", "window": 64, "queue": 64, "deadline_ms": 20_000}

    def run(source: Path, code: int = 0, **settings: Any) -> Played:
        out = tmp_path / "car"
        with worker(mosquitto_url, model):
            ended, printed = play(source, mosquitto_url, out, **usual | settings)
        assert ended == code, printed
        frames = sorted(read_rows(out), key=lambda row: int(row["sequence"]))
        check(frames)
        assert audit(out) == ()
        rows = sorted(read_presented(out), key=lambda row: row.tick)
        assert [row.tick for row in rows] == [int(row["sequence"]) for row in frames]
        assert all((row.origin is OutputOrigin.NONE) == bool(row.reason) for row in rows)
        assert all(row.age_ns is None or row.age_ns >= 0 for row in rows)
        return Played(rows, frames, read_manifest(out), printed, out)

    return run


def bag(path: Path, shots: Sequence[Shot]) -> Path:
    """Writes a bag of uniform grey frames."""
    with BagWriter(path, "mcap", "none") as writer:
        for shot in shots:
            channels = 1 if shot.encoding == "mono8" else 3
            pixels = np.full((*shot.size, channels), shot.level, np.uint8).squeeze()
            stamp_ns, at_ns = (_START_NS + round(_STEP_NS * steps) for steps in (shot.stamp, shot.at))
            writer.write_image(_TOPIC.format(shot.camera), pixels, shot.encoding, stamp_ns, at_ns, shot.camera)
    return path


def of_scene(played: Played, scenes: Sequence[int]) -> None:
    """Checks that no output was made of a result from before a change; `scenes` are the first ticks after changes."""
    for row in played.rows:
        first = max((scene for scene in scenes if scene <= row.tick), default=0)
        assert row.source_sequence is None or first <= row.source_sequence <= row.tick


def test_a_camera_that_changes_its_size_or_encoding_starts_anew(played: Play, tmp_path: Path) -> None:
    """A mask of another part of the scene, or flow between images that do not match, must not be presented."""
    kinds = [((128, 192), "rgb8"), ((64, 96), "rgb8"), ((64, 96), "mono8"), ((200, 200), "rgb8")]
    shots = [
        Shot(at=number, stamp=number, size=kinds[number // 5][0], encoding=kinds[number // 5][1])
        for number in range(5 * len(kinds))
    ]
    result = played(bag(tmp_path / "drive", shots))
    of_scene(result, [5, 10, 15])
    assert result.manifest["presenting"]["restarts"] == len(kinds) - 1
    assert set(result.reasons()) <= {"no_result", "camera_changed", "skipped"}
    assert result.reasons()["camera_changed"]
    assert {row.origin for row in result.rows} >= {OutputOrigin.WARPED}


@pytest.mark.parametrize(
    ("stamps", "restarts"),
    [
        pytest.param([0, 1, 2, 3, 4, 2, 3, 4, 5, 6], 1, id="backwards"),
        pytest.param([0, 1, 2, 3, 4, 100, 101, 102, 103, 104], 1, id="jump"),
        pytest.param([0, 1, 1, 1, 2, 2, 3, 3, 3, 3], 0, id="repeated"),
        pytest.param([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], 9, id="reversed"),
        pytest.param([0, 1, 2, 6, 7, 8, 14, 15, 16, 17], 0, id="dropped-frames"),
    ],
)
def test_odd_stamps_are_counted_and_lose_no_tick(
    played: Play, tmp_path: Path, stamps: Sequence[int], restarts: int
) -> None:
    """Results of before a jump are not presented after it; gaps of a few frames and repeated stamps are no jump."""
    shots = [Shot(at=number, stamp=stamp) for number, stamp in enumerate(stamps)]
    result = played(bag(tmp_path / "drive", shots))
    assert result.manifest["presenting"]["restarts"] == restarts
    jumps = [at for at in range(1, len(stamps)) if not 0 <= stamps[at] - stamps[at - 1] <= 20]
    of_scene(result, jumps)
    assert set(result.reasons()) <= {"no_result", "camera_changed", "skipped"}


def test_cameras_of_other_sizes_and_rates_do_not_disturb_each_other(played: Play, tmp_path: Path) -> None:
    """Each camera has its own presenter, and its outputs are made of its own results."""
    left = [Shot(at=number, stamp=number, level=LEVELS[0]) for number in range(12)]
    right = [
        Shot(at=number + 0.3, stamp=number + 0.3, camera="right", size=(130, 170), level=LEVELS[2], encoding="bgr8")
        for number in range(0, 12, 4)
    ]
    result = played(bag(tmp_path / "drive", sorted([*left, *right], key=lambda shot: shot.at)))
    cameras = {int(row["sequence"]): row["camera"] for row in result.frames}
    assert Counter(row.camera for row in result.rows) == {_TOPIC.format("left"): 12, _TOPIC.format("right"): 3}
    assert all(cameras[row.source_sequence] == row.camera for row in result.rows if row.source_sequence is not None)
    classes = {_TOPIC.format("left"): 0, _TOPIC.format("right"): 2}
    with_output = [row for row in result.rows if row.origin in _OUTPUTS]
    assert {row.camera for row in with_output} == set(classes)
    assert all(set(np.unique(result.mask(row))) == {classes[row.camera]} for row in with_output)
    assert result.manifest["presenting"]["restarts"] == 0


def test_frames_that_cannot_be_read_are_ticks_with_the_reason(played: Play, tmp_path: Path) -> None:
    """The vehicle has no image of now to move a result to; the presenter goes on with the next frame."""
    shots = [Shot(at=at, stamp=at, encoding="32FC7" if 4 <= at < 8 else "rgb8") for at in range(14)]
    result = played(bag(tmp_path / "drive", shots))
    assert [row.tick for row in result.rows if row.reason.startswith("undecodable: ")] == [4, 5, 6, 7]
    assert all("32FC7" in row.reason for row in result.rows[4:8])
    assert any(row.origin is OutputOrigin.WARPED for row in result.rows[8:])
    assert result.manifest["presenting"]["restarts"] == 0


class SlowPresenter:
    """Lets other frames fall due while it presents one."""

    def __init__(self, parts: PresenterParts) -> None:
        del parts
        self._wait = threading.Event()

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        del tick
        self._wait.wait(0.35)  # Longer than three ticks.
        return Output(OutputOrigin.NONE) if newest is None else Output(OutputOrigin.REMOTE, newest.result)


class HangingPresenter:
    """Waits for ever at its fourth tick."""

    released = threading.Event()

    def __init__(self, parts: PresenterParts) -> None:
        del parts
        self._ticks = 0

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        del tick
        self._ticks += 1
        if self._ticks == 4:
            self.released.wait()
        return Output(OutputOrigin.NONE) if newest is None else Output(OutputOrigin.REMOTE, newest.result)


class FailingPresenter:
    """Raises at every other tick."""

    def __init__(self, parts: PresenterParts) -> None:
        del parts

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        if tick.sequence % 2:
            raise ValueError("=1+1 is odd\x1b[2J\n")
        return Output(OutputOrigin.NONE) if newest is None else Output(OutputOrigin.REMOTE, newest.result)


class WrongPresenter:
    """Returns what is no output."""

    def __init__(self, parts: PresenterParts) -> None:
        del parts

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Any:
        """See Presenter."""
        del tick
        return None if newest is None else newest.result


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Callable[[type], str]:
    """Adds a presenter to the table; returns its name."""

    def add(kind: type) -> str:
        monkeypatch.setitem(PRESENTERS, "plugin", PresenterEntry(f"{__name__}:{kind.__name__}", "edge"))
        return "plugin"

    return add


def test_a_presenter_slower_than_the_camera_skips_ticks_and_delays_no_frame(
    played: Play, plugin: Callable[[type], str], tmp_path: Path
) -> None:
    """The newest tick is presented next; older ones are counted, and every frame is sent all the same."""
    shots = [Shot(at=number, stamp=number) for number in range(16)]
    result = played(bag(tmp_path / "drive", shots), present=plugin(SlowPresenter))
    assert result.reasons()["skipped"] >= 8
    assert result.manifest["presenting"]["reasons"]["skipped"] == result.reasons()["skipped"]
    assert result.rows[-1].reason == ""  # The last tick is not replaced, so it is presented.
    assert all(row["attempts"] != "0" for row in result.frames)
    assert f"{result.reasons()['skipped']} skipped" in " ".join(result.printed.split())


def test_a_presenter_that_hangs_costs_its_ticks_and_the_run_ends_in_order(
    played: Play, plugin: Callable[[type], str], tmp_path: Path
) -> None:
    """Its thread cannot be stopped; the results of workers are written as ever, and the summary says what to look for."""
    shots = [Shot(at=number, stamp=number) for number in range(16)]
    try:
        result = played(bag(tmp_path / "drive", shots), present=plugin(HangingPresenter))
    finally:
        HangingPresenter.released.set()
    hung = [row.tick for row in result.rows if row.reason == "hung"]
    assert hung == list(range(hung[0], len(shots)))
    assert len(hung) >= 8
    assert all(row["outcome"] == "answered" for row in result.frames)
    assert result.manifest["state"] == "complete"
    assert f"the presenter hung and left {len(hung)} of 16 frames" in " ".join(result.printed.split())


def test_a_presenter_that_fails_is_counted_and_the_run_goes_on(
    played: Play, plugin: Callable[[type], str], tmp_path: Path
) -> None:
    """A plug-in may have bugs; the results of workers are written as ever, and the text of its error is harmless."""
    shots = [Shot(at=number, stamp=number) for number in range(10)]
    result = played(bag(tmp_path / "drive", shots), present=plugin(FailingPresenter))
    failed = [row for row in result.rows if row.reason.startswith("failed: ")]
    assert {row.tick for row in failed} <= {1, 3, 5, 7, 9}
    assert len(failed) + result.reasons()["skipped"] >= 5
    assert not any("\x1b" in row.reason or "\n" in row.reason for row in failed)
    assert {row.tick % 2 for row in result.rows if row.origin is OutputOrigin.REMOTE} == {0}
    assert all(row["outcome"] == "answered" for row in result.frames)


def test_a_presenter_that_returns_no_output_is_counted_as_failed(
    played: Play, plugin: Callable[[type], str], tmp_path: Path
) -> None:
    """Nothing checks a plug-in's types before it runs."""
    shots = [Shot(at=number, stamp=number) for number in range(6)]
    result = played(bag(tmp_path / "drive", shots), present=plugin(WrongPresenter))
    assert set(result.reasons()) <= {"failed", "skipped"}
    assert {row.origin for row in result.rows} == {OutputOrigin.NONE}
    assert all(row["outcome"] == "answered" for row in result.frames)


def test_lines_of_results_have_the_age_and_origin_of_every_tick(played: Play, tmp_path: Path) -> None:
    """A program that acts on outputs reads one line a tick, also where there is none."""
    shots = [Shot(at=number, stamp=number, encoding="32FC7" if number == 4 else "rgb8") for number in range(8)]
    result = played(bag(tmp_path / "drive", shots), present="hold", sinks=("jsonl",))
    lines = [json.loads(line) for line in (result.out / "presented" / "results.jsonl").read_text().splitlines()]
    assert sorted(line["sequence"] for line in lines) == list(range(8))
    rows = {row.tick: row for row in result.rows}
    for line in lines:
        row = rows[line["sequence"]]
        assert (line["origin"], line.get("age_ns")) == (row.origin.value, row.age_ns)
        assert line.get("reason", "").startswith(row.reason.partition(":")[0])


@pytest.mark.parametrize("mark", [Mark.RAISE, Mark.HANG])
def test_a_local_model_that_fails_leaves_the_moved_results(tmp_path: Path, mark: Mark) -> None:
    """The link is fine, so a result of a worker is there; a model that hangs is not asked again and stops no tick."""
    with Rig(tmp_path, seed=1) as rig:
        models = make_local_model(rig)
        broker = rig.broker()
        rig.worker(broker.url, think_ms=20)
        source = marked_pictures(rig, "marked", dict.fromkeys((10, 12), mark), 40)
        flags = ["--present", "fuse", "--local-model", MODEL, "--models", str(models), "--local-timeout-ms", "300"]
        flags += ["--fusion", str(write_fusion_file(rig, models, MODEL))]
        vehicle = rig.vehicle(broker.url, source=source, rate_hz=10.0, flags=flags)
        vehicle.wait()
        accounts = rig.end_vehicles()
        ticks = PresentedTicks(vehicle)
        assert accounts.failures == []
        assert (ticks.unaccounted, ticks.wrong_masks) == (0, 0)
        alone = {OutputOrigin.WARPED, OutputOrigin.REMOTE}
        assert {row.origin for row in taken(ticks.rows[10:13:2])} <= alone
        later = {row.origin for row in taken(ticks.rows[20:])}
        assert later <= alone if mark is Mark.HANG else OutputOrigin.FUSED in later
