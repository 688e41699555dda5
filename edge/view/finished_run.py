"""The command `skylane view`: shows a finished run in Rerun, from its `.rrd` files, or its log, masks and source."""

import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
import numpy as np

from edge.config import EdgeConfig
from edge.pipeline import colour_image
from edge.presenting.presented_run import OUTPUTS_FOLDER
from edge.sinks.rerun import RRD_NAME
from edge.sinks.scene import Reduction, Scene
from edge.sinks.sink import FrameResult, Origin
from edge.sources.source import open_source
from edge.view.viewer import LOOPBACK, VIEWERS, ViewSettings
from shared.errors import SkylaneError
from shared.flags import EXISTING_FOLDER
from shared.imaging.frames import Frame, Layout
from shared.imaging.geometry import Geometry, Resize, plan, rgb_input
from shared.imaging.image_files import ImageArray, read_mask
from shared.imaging.labels import Labels
from shared.messages.model_card import ModelCard
from shared.messages.topics import CameraNames
from shared.registry import load
from shared.runlog.latency_log import CSV_NAME, read_rows
from shared.runlog.presented_log import PRESENTED_NAME, read_presented
from shared.runlog.run_manifest import MANIFEST_NAME, read_manifest
from shared.runtime.processes import interrupt_on_termination
from shared.sanitize import printable

_HOW_PLAYED = ("demosaic", "topics", "start_offset_s", "playback_duration_s", "bits", "encodings")
_HISTORY_MB = 4000


@click.command()
@click.argument("run", type=EXISTING_FOLDER)
@click.option("--source", help="What was played, to show its images behind the masks; not needed after --sink rerun.")
def view(run: Path, source: str | None) -> None:
    """Open the finished run RUN in Rerun, a page on this machine, until Ctrl-C; it plays at the speed of the run."""
    card, _ = model_of(run)
    with interrupt_on_termination():
        viewer = load("viewer", VIEWERS, "rerun")(ViewSettings("rerun", LOOPBACK, card, history_mb=_HISTORY_MB))
        with closing(viewer):
            if files := files_for_rerun(run):
                for file in files:
                    viewer.scene.draw_file(file)
            else:
                draw_run(run, source, viewer.scene)
            viewer.scene.play()
            with suppress(KeyboardInterrupt):  # Scripts wait for this line before they end the command.
                click.echo(f"{viewer.address}\n{viewer.note}; Ctrl-C ends it")
                signal.pause()


def files_for_rerun(folder: Path) -> list[Path]:
    """Returns the files that `--sink rerun` wrote in the folder of a run."""
    paths = (folder / RRD_NAME, folder / OUTPUTS_FOLDER / RRD_NAME)
    return [path for path in paths if path.is_file()]


def model_of(folder: Path) -> tuple[ModelCard, EdgeConfig]:
    """Returns the card of a run's model, and the configuration that says how its images were prepared.

    Raises:
        SkylaneError: the manifest is missing or damaged.
    """
    manifest = read_manifest(folder)
    try:
        model, configuration = manifest["model"], manifest["configuration"]
        names = tuple(model["labels"])
        made_up = tuple(
            (37 * class_id % 256, 91 * class_id % 256, 53 * class_id % 256) for class_id in range(len(names))
        )
        # Manifests of earlier versions have no colours.
        colours = tuple(map(_colour, model["colours"])) if "colours" in model else made_up
        card = ModelCard(
            name=model["name"],
            version=model["version"],
            sha256=model["sha256"],
            task=model["task"],
            height=model["height"],
            width=model["width"],
            layout=Layout.RGB8,
            resize=Resize(configuration["resize"] or model.get("resize") or Resize.STRETCH),
            labels=Labels(names, colours),
            trained=model["trained"],
        )
        how = {name: configuration[name] for name in _HOW_PLAYED if name in configuration}
        return card, EdgeConfig.model_validate({**how, "resize": card.resize})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SkylaneError(f"{folder / MANIFEST_NAME} is not a run's manifest: {error}") from error


def _colour(text: str) -> tuple[int, int, int]:
    """Parses a colour such as "#80ff00"; raises a ValueError for any other text."""
    red, green, blue = bytes.fromhex(text.removeprefix("#"))
    return red, green, blue


def draw_run(folder: Path, source: str | None, scene: Scene) -> None:
    """Draws the latency of every frame of a run, its masks and those of its presenter, and the images of its source.

    Raises:
        SkylaneError: a file of the run or the source cannot be read, or the run had another source.
    """
    card, config = model_of(folder)
    arrived: dict[tuple[str, int], tuple[int, int]] = {}  # (camera, index): (sequence, result time).
    played: list[tuple[int, str]] = []
    outcomes: Counter[str] = Counter()
    try:
        for at_ns, row in sorted(((_end_ns(row), row) for row in read_rows(folder)), key=itemgetter(0)):
            arrived[row["camera"], int(row["frame_index"])] = int(row["sequence"]), at_ns
            played.append((int(row["sequence"]), row["camera"]))
            outcomes[row["outcome"]] += 1
            scene.measure(row, at_ns)
            scene.count(outcomes, None, at_ns)
    except (ValueError, OverflowError) as error:
        raise SkylaneError(
            f"{folder / CSV_NAME} is damaged: {error}: `skylane report --check {folder}` lists where"
        ) from error
    names = CameraNames(camera for _, camera in sorted(played))
    outputs = {
        (row.camera, row.frame_index): row
        for row in (read_presented(folder) if (folder / PRESENTED_NAME).exists() else ())
    }
    for key, image, geometry in _images(folder, source, arrived, card, config):
        sequence, at_ns = arrived[key]
        camera, index = key
        places: list[tuple[Path, int | None, int | None]] = [(folder, at_ns, None)]
        if key in outputs:
            places.append((folder / OUTPUTS_FOLDER, outputs[key].presented_ns, outputs[key].age_ns))
        for place, time_ns, age_ns in places:
            mask = _mask(place / "masks" / names[camera], index)
            if time_ns is None or (mask is None and (image is None or place != folder)):
                continue
            behind = np.zeros((*mask.shape, 3), np.uint8) if image is None else image
            placed = geometry or _as_it_is(behind)
            origin = Origin.WORKER if place == folder else outputs[key].origin
            frame = FrameResult(
                camera, sequence, index, at_ns, at_ns, behind, mask, placed, origin=origin, age_ns=age_ns,
                camera_id=names[camera],
            )  # fmt: skip
            scene.show(frame, time_ns, Reduction())


def _end_ns(row: Mapping[str, str]) -> int:
    return int(row["t_due_ns"]) + round(float(row["total_ms"] or 0) * 1e6)


def _images(
    folder: Path,
    source: str | None,
    wanted: Mapping[tuple[str, int], Any],
    card: ModelCard,
    config: EdgeConfig,
) -> Iterator[tuple[tuple[str, int], ImageArray | None, Geometry | None]]:
    """Yields (camera, index), image and geometry of the `wanted` frames; without a source, no image and geometry."""
    if source is None:
        yield from ((key, None, None) for key in wanted)
        return
    noted = read_manifest(folder).get("source")
    played = noted if isinstance(noted, Mapping) else {}
    with closing(
        open_source(
            source,
            topics=config.topics,
            start_offset_s=config.start_offset_s,
            duration_s=config.playback_duration_s,
            bits=config.bits,
            encodings=config.encodings,
        )
    ) as opened:
        if played.get("sha256") not in (None, opened.provenance.get("sha256")):  # A camera has no hash.
            raise SkylaneError(
                f"--source {source} is not what was played, {printable(str(played.get('path')))}: their SHA-256 differ"
            )
        for frame in opened.frames():
            if (frame.camera, frame.index) in wanted and isinstance(frame, Frame):
                image, geometry = colour_image(frame, card, config)
                yield (frame.camera, frame.index), rgb_input(image, geometry, card.layout), geometry


def _mask(folder: Path, index: int) -> Any:
    path = folder / f"{index:06d}.png"
    return read_mask(path) if path.exists() else None


def _as_it_is(image: Any) -> Geometry:
    return plan(Resize.STRETCH, *image.shape[:2], *image.shape[:2])
