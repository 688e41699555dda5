"""`skylane view`: a finished run in Rerun, from whatever files it has."""

import csv
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import pytest
import rerun as rr

from edge.config import EdgeConfig
from edge.run import open_sinks
from edge.run_record import started
from edge.sinks.rerun import RerunScene
from edge.sinks.sink import FrameResult
from edge.view.finished_run import draw_run, model_of
from shared.errors import SkylaneError
from shared.imaging.geometry import Resize, plan
from shared.imaging.image_codecs import ImageLimits
from shared.imaging.image_files import decode_to_rgb
from shared.imaging.labels import Labels
from shared.runlog.latency_log import LogWriter
from shared.runlog.presented_log import OutputOrigin, PresentedLog, PresentedRow
from shared.runlog.run_manifest import MANIFEST_NAME, write_manifest
from tests.edge.samples import CARD
from tests.edge.test_viewer_sinks import answered
from tests.edge.view.watching import WAIT_S, RerunReader, read_rrd
from tests.support.command import Command

HEIGHT, WIDTH, FRAMES = 16, 24, 4
LABELS = Labels(("road", "tree"), ((200, 0, 0), (0, 200, 0)))


def mask(index: int) -> Any:
    """Returns a mask that differs from frame to frame."""
    made = np.zeros((HEIGHT, WIDTH), np.uint8)
    made[:, : index + 1] = 1
    return made


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run of four images, with the masks of the results and of the presenter as PNG files and in files for Rerun."""
    card = replace(CARD, labels=LABELS, height=HEIGHT, width=WIDTH, resize=Resize.STRETCH)
    images = tmp_path / "images"
    images.mkdir()
    for index in range(FRAMES):
        cv2.imwrite(str(images / f"{index}.png"), np.full((2 * HEIGHT, 2 * WIDTH, 3), 50 * index, np.uint8))
    config, folder = EdgeConfig(sinks=("png", "rerun"), present="hold"), tmp_path / "run"
    with LogWriter(folder) as log, PresentedLog(folder) as outputs:
        (folder / "presented").mkdir()
        write_manifest(folder, started(config, "s1", {"kind": "folder", "path": "images"}, card))
        sinks = open_sinks(config, folder, card)
        presented = open_sinks(config, folder / "presented", card)
        for index in range(FRAMES):
            row = replace(answered(index, index * 10**8), camera="images", frame_index=index)
            log.close(row)
            due_ns = min(row.edge_times.values())
            geometry = plan(Resize.STRETCH, 2 * HEIGHT, 2 * WIDTH, HEIGHT, WIDTH)
            image = np.full((HEIGHT, WIDTH, 3), 50 * index, np.uint8)
            frame = FrameResult("images", index, index, 7, index * 10**8, image, mask(index), geometry)
            for sink in sinks:
                sink.write(frame)
            output = PresentedRow(
                "images", "s1", index, OutputOrigin.REMOTE, "", index, 7, due_ns, due_ns + index, index, 10**7
            )
            outputs.write(output)
            for sink in presented:
                sink.write(replace(frame, age_ns=10**7))
        for sink in (*sinks, *presented):
            sink.close()
    return folder


@contextmanager
def saved_scene(run: Path, path: Path) -> Iterator[RerunScene]:
    """Yields a scene of Rerun that is written into a file."""
    recording = rr.RecordingStream("tests")
    recording.save(path)
    try:
        yield RerunScene(recording, model_of(run)[0])
    finally:
        recording.disconnect()


def drawn(run: Path, path: Path, source: Path | None = None) -> dict[str, list[dict[str, Any]]]:
    """Returns what is drawn of a run without files for Rerun."""
    with saved_scene(run, path) as scene:
        draw_run(run, None if source is None else str(source), scene)
    return read_rrd(path)


def check_drawn(found: dict[str, list[dict[str, Any]]]) -> None:
    """Checks that all masks, the latency and the classes are drawn."""
    for place in ("result", "presented"):
        masks = {bytes(row["SegmentationImage:buffer"][0]) for row in found[f"/images/{place}/mask"]}
        assert masks == {mask(index).tobytes() for index in range(FRAMES)}
    assert len([row for row in found["/latency"] if "Scalars:scalars" in row]) == FRAMES
    labels = {each["class_description"]["info"]["label"] for each in found["/"][0]["AnnotationContext:context"][0]}
    assert labels >= {"road", "tree"}


def test_rerun_receives_the_files_of_its_sink(finished: Path, tmp_path: Path) -> None:
    """Rerun's own program connects to `skylane view`, which needs neither masks nor a source then."""
    path = tmp_path / "seen.rrd"
    with Command("view", finished) as command, RerunReader(command.read_line(), path) as reader:
        reader.wait_for(lambda: b"/images/result" in path.read_bytes() if path.exists() else False)
        reader.wait_until_quiet()
    check_drawn(read_rrd(path))


@pytest.mark.parametrize("has_source", [True, False])
def test_a_finished_run_is_drawn(finished: Path, tmp_path: Path, *, has_source: bool) -> None:
    """From the masks and the source that was played, or from the masks alone."""
    found = drawn(finished, tmp_path / "drawn.rrd", tmp_path / "images" if has_source else None)
    check_drawn(found)
    pictures = [bytes(row["EncodedImage:blob"][0]) for row in found["/images/result"] if "EncodedImage:blob" in row]
    shades = [round(decode_to_rgb(picture, ImageLimits()).mean(), -1) for picture in pictures]
    assert shades == ([50 * index for index in range(FRAMES)] if has_source else [0] * FRAMES)


def _change(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return apply


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_text(""),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text("{}"),
        lambda path: path.write_bytes(b"\xff\xfe"),
        _change(lambda document: document.pop("model")),
        _change(lambda document: document.update(model=None)),
        _change(lambda document: document["model"].update(labels=["a", "a"])),
        _change(lambda document: document["model"].update(labels=["a\x1b[2J"])),
        _change(lambda document: document["model"].update(labels=7)),
        _change(lambda document: document["model"].update(colours=["#0102"])),
        _change(lambda document: document["model"].update(colours=["#0102zz", "#000000"])),
        _change(lambda document: document["model"].update(resize="fold")),
        _change(lambda document: document.pop("configuration")),
        _change(lambda document: document["configuration"].update(demosaic="guess")),
    ],
)
def test_a_damaged_manifest_is_named(damage: Callable[[Path], None], finished: Path) -> None:
    """The reason names the file."""
    damage(finished / MANIFEST_NAME)
    with pytest.raises(SkylaneError, match=MANIFEST_NAME):
        model_of(finished)


def test_colours_of_an_earlier_version_are_made_up(finished: Path) -> None:
    """It noted the names alone."""
    _change(lambda document: document["model"].pop("colours"))(finished / MANIFEST_NAME)
    card, _ = model_of(finished)
    assert card.labels.names == LABELS.names
    assert len(set(card.labels.colours)) == 2


def test_a_picture_in_place_of_a_mask_is_named(finished: Path, tmp_path: Path) -> None:
    """Its colours would be drawn as classes."""
    (path,) = finished.glob("masks/*/000002.png")
    cv2.imwrite(str(path), np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    with pytest.raises(SkylaneError, match=r"000002\.png: is not a mask"):
        drawn(finished, tmp_path / "drawn.rrd")


def test_images_without_masks_are_shown(finished: Path, tmp_path: Path) -> None:
    """Those of frames without an answer, and of runs of detectors, whose results are in no mask."""
    for path in finished.glob("masks/*/*.png"):
        path.unlink()
    found = drawn(finished, tmp_path / "drawn.rrd", tmp_path / "images")
    assert len([row for row in found["/images/result"] if "EncodedImage:blob" in row]) == FRAMES
    assert "/images/result/mask" not in found


def test_another_source_than_the_played_one_is_refused(finished: Path, tmp_path: Path) -> None:
    """Its images would stand behind the masks of others."""
    for path in (finished / "run.rrd", finished / "presented" / "run.rrd"):
        path.unlink()
    _change(lambda document: document["source"].update(sha256="0" * 64, path="a.mp4"))(finished / MANIFEST_NAME)
    with Command("view", finished, "--source", tmp_path / "images") as command:
        code, _ = command.wait()
    assert code == 1
    assert "is not what was played, a.mp4" in " ".join(command.log_lines)


@pytest.mark.parametrize("value", ["abc", "nan", "inf"])
def test_a_damaged_log_is_named(value: str, finished: Path, tmp_path: Path) -> None:
    """With the command that lists what is wrong."""
    log = finished / "latency.csv"
    with log.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[1]["total_ms"] = value
    with log.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    with pytest.raises(SkylaneError, match=r"latency\.csv is damaged: .*skylane report --check"):
        drawn(finished, tmp_path / "drawn.rrd")


def test_no_server_is_left_and_nothing_printed(finished: Path) -> None:
    """Ctrl-C is no error, and a command that is killed takes Rerun's server with it."""
    with Command("view", finished) as command:
        command.read_line()
        assert command.end(signal.SIGINT)[0] == 0
    assert not [line for line in command.log_lines if "ERROR" in line]
    with Command("view", finished) as command:
        command.read_line()
        (server,) = psutil.Process(command.pid).children()
        command.kill()
    _, alive = psutil.wait_procs([server], WAIT_S)
    assert alive == []


def test_a_damaged_file_for_rerun_is_named(finished: Path, tmp_path: Path) -> None:
    """A full disk leaves one."""
    (finished / "run.rrd").write_bytes(b"RRF2 and then nothing that Rerun knows")
    with (
        saved_scene(finished, tmp_path / "drawn.rrd") as scene,
        pytest.raises(SkylaneError, match=r"run\.rrd cannot be read"),
    ):
        scene.draw_file(finished / "run.rrd")
