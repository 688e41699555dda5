"""`skylane demo`: the whole pipeline on this machine, from a rendered bag to masks and the report of the run."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import av
import click
import numpy as np
from rich.console import Console
from rich.progress import Progress

from edge.config import EdgeConfig
from edge.run import run
from edge.sinks.video import VIDEO_FORMATS
from edge.view.viewer import VIEWERS
from modelling.fetching import fetch_network
from ops.broker.broker import Broker, BrokerKind
from ops.late_results import LateResults, play_late
from ops.processes.child import BenchError
from ops.processes.worker_process import Worker
from rosbag_tools.drive.recording import sample_bag
from shared.catalogue import CATALOGUE, Catalogue, fetch_recording
from shared.flags import WholeRange
from shared.imaging.image_files import write_png
from shared.logs import configure_logging
from shared.models.repository import Repository, default_root
from shared.package_data import IS_CHECKOUT
from shared.quiet import is_quiet
from shared.runlog.run_folder import RUNS, free_folder

_MODEL = "road-small"
_REAL_MODEL, _REAL_VIDEO = "cityscapes-mobilenet", "highway"  # Names in the catalogue.
_WATCH = "make view" if IS_CHECKOUT else "pip install 'skylane[view]', then skylane demo --view rerun"
_MAX_LATE_FRAMES = 40  # Four seconds of the rendered drive.
# Folders of the PNG sink by the task of the model.
_IMAGE_FOLDERS = {
    "masks_colour": "one image per frame (masks/ contains the class ids)",
    "pictures": "one image per frame, with the detected objects drawn on it",
}


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the run. [runs/demo, or runs/demo-2 and so on if it exists]",
)
@click.option(
    "--models", default=default_root, type=click.Path(file_okay=False, path_type=Path), help="Model repository."
)
@click.option("--model", help="Name of the model. [road-small; with --real cityscapes-mobilenet]")
@click.option("--frames", default=60, show_default=True, type=WholeRange(1, 10_000), help="Frames to send.")
@click.option(
    "--real",
    is_flag=True,
    help="Fetch a network for real streets and a video of one (3 MB), instead of rendering a drive.",
)
@CATALOGUE
@click.option(
    "--view", type=click.Choice(list(VIEWERS)), help="Show the drive live in this viewer, again and again until Ctrl-C."
)
@click.option(
    "--broker",
    "broker_kind",
    default=BrokerKind.AUTO.value,
    type=click.Choice([kind.value for kind in BrokerKind]),
    help="Kind of broker to start.",
)
def demo(
    *,
    out: Path | None,
    models: Path,
    model: str | None,
    frames: int,
    broker_kind: str,
    real: bool,
    catalogue: Catalogue,
    view: str | None,
) -> None:
    """Render a drive, or fetch a real one, run a broker and a worker, play the drive, and show masks and latency."""
    # Importing Plotly is slow; without it, nothing begins.
    from analysis.report.document import write_report  # noqa: PLC0415  It imports pandas, which takes a second.

    console, folder = Console(), out or free_folder(RUNS / "demo")
    if real:
        console.rule("1  A real street")
        bag = fetch_recording(catalogue, _REAL_VIDEO, RUNS / "bags")
        console.print(f"video: {bag}; {catalogue.bag(_REAL_VIDEO).licence}", highlight=False, markup=False)
        if model is None:
            model = _REAL_MODEL
            console.print(fetch_network(catalogue, model, Repository(models)), highlight=False, markup=False)
    else:
        console.rule("1  A synthetic drive, as a Bayer camera records it")
        model = model or _MODEL
        with _progress(console, frames) as advance:
            bag = sample_bag(frames, advance)
        console.print(f"bag: {bag}", highlight=False)
    console.rule("2  A broker and a worker")

    def show_line(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    with Broker.start(kind=broker_kind) as broker:
        console.print(broker.description, highlight=False)
        with Worker(broker.url, models=models, model=model, on_line=show_line) as worker:
            if view is not None:
                console.rule("3  The same drive, live, until Ctrl-C")
                configure_logging()  # The address is in a log line.
                live = EdgeConfig(
                    broker=broker.url, vehicle="demo", model=model, loop=True, out=folder, sinks=(), view=view
                )
                has_masks = _has_masks(models, model)
                run(str(bag), live.model_copy(update={"present": "warp" if has_masks else "hold"}), console)
                return
            console.rule("3  The vehicle sends every frame and receives its mask, one at a time")
            config = EdgeConfig(
                broker=broker.url,
                vehicle="demo",
                model=model,
                closed_loop=True,
                window=1,
                frames=frames,
                out=folder,
                sinks=("png", "video", "overlay", "jsonl"),
            )
            beside = {f"worker/{worker.name}": worker.pid, "broker": broker.pid}
            if code := run(str(bag), config, console, sampled_processes=beside):
                raise BenchError(f"the run in {folder} failed with code {code}")
        console.rule("4  The same drive in real time, over a slow link")
        late = _play_late(bag, folder, broker, console, models=models, model=model, frames=frames)
    with console.status("writing the report"):
        report = write_report([folder])
    console.rule("Results")
    for line in _results(folder, report, VIDEO_FORMATS[config.video_codec].suffix):
        console.print(line, highlight=False)
    if late is not None:
        console.print(
            f"{late.video}  masks {late.age_ms:.0f} ms old: held, and moved to now{late.accuracy}", highlight=False
        )
    console.print(f"See it live: {_WATCH}", highlight=False)


def write_still(video: Path) -> Path:
    """Writes the middle frame of a video as a PNG file next to it; returns its path."""
    with av.open(str(video)) as container:
        assert container.duration is not None
        middle_s = container.duration / av.time_base / 2
        frames = takewhile(lambda frame: (frame.time or 0.0) <= middle_s, container.decode(video=0))
        frame = deque(frames, maxlen=1).pop()
    still = video.with_suffix(".png")
    write_png(still, np.asarray(frame.to_ndarray(format="rgb24"), np.uint8))
    return still


def _play_late(
    bag: Path, folder: Path, broker: Broker, console: Console, *, models: Path, model: str, frames: int
) -> LateResults | None:
    """Plays the drive with a presenter; returns None if the model's results are no masks."""
    if not _has_masks(models, model):
        console.print(f"left out: {model} gives no masks to compare")
        return None
    frames = min(frames, _MAX_LATE_FRAMES)
    with console.status("late masks, held and moved to now"):
        late = play_late(bag, folder / "late", broker, models=models, model=model, frames=frames)
    if late is None:
        console.print("left out: no mask came in time to compare, as this machine is busy; try again when it is idle")
    return late


def _has_masks(models: Path, model: str) -> bool:
    return Repository(models).find(model).card().task == "segmentation"


@contextmanager
def _progress(console: Console, frames: int) -> Iterator[Callable[[], None]]:
    with Progress(console=console, disable=is_quiet()) as progress:
        task = progress.add_task("rendering", total=frames)
        yield lambda: progress.advance(task)
        progress.update(task, completed=frames)


def _results(folder: Path, report: Path, video_suffix: str) -> Iterator[str]:
    """Yields the path and the content of every result."""
    yield f"{report}  the time of every stage; opens in any browser, without a network"
    for video in sorted(folder.glob(f"overlay_*{video_suffix}")):
        yield f"{write_still(video)}  one frame next to the model's result for it"
        yield f"{video}  the whole drive; current browsers play it"
    for name, content in _IMAGE_FOLDERS.items():
        if (folder / name).is_dir():
            yield f"{folder}/{name}  {content}"
    yield f"{folder}/results.jsonl  the results of every frame, for programs"
    yield f"{folder}/latency.csv  one row per frame with every stage of both nodes"
