"""`skylane demo`: the whole pipeline on this machine, from a rendered bag to masks and the report of the run."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import av
import click
from rich.console import Console
from rich.progress import Progress

from bench.harness.environment import sample_bag
from bench.load.worker_process import Worker
from bench.report.document import write_report
from cloud.models.repository import default_root
from edge.config import EdgeConfig
from edge.run import run
from edge.sinks.video_codec import VIDEO_FORMATS
from shared.broker.broker import Broker
from shared.errors import SkylaneError
from shared.imaging.opencv import cv2
from shared.log_lines import READY, read_line
from shared.runlog.run_folder import RUNS, free_folder

# Folders of the PNG sink by the task of the model.
_IMAGE_FOLDERS = {
    "masks_colour": "one image per frame (masks/ contains the class ids)",
    "pictures": "one image per frame, with the detected objects drawn on it",
}


class DemoError(SkylaneError):
    """The demo failed."""


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the run. [runs/demo, or runs/demo-2 and so on if it exists]",
)
@click.option(
    "--models",
    type=click.Path(file_okay=False, path_type=Path),
    default=default_root,
    help="Folder of the model repository.",
)
@click.option("--model", default="road-small", show_default=True, help="Name of the model.")
@click.option(
    "--frames", type=click.IntRange(1, 10_000), default=60, show_default=True, help="Frames to render and send."
)
@click.option(
    "--broker",
    "broker_kind",
    type=click.Choice(["auto", "mosquitto", "embedded"]),
    default="auto",
    help="Kind of broker to start.",
)
def demo(out: Path | None, models: Path, model: str, frames: int, broker_kind: str) -> None:
    """Render a drive into a bag, run a broker and a worker, play the bag, and show masks and latency."""
    console = Console()
    folder = out or free_folder(RUNS / "demo")
    console.rule("1  A synthetic drive, as a Bayer camera records it")
    with _progress(console, frames) as advance:
        bag = sample_bag(frames, advance)
    console.print(f"bag: {bag}", highlight=False)
    console.rule("2  A broker and a worker")
    with Broker.start(kind=broker_kind) as broker:
        console.print(broker.description, highlight=False)
        with Worker(broker.url, models=models, model=model, on_line=_StartLog(console)) as worker:
            console.rule("3  The vehicle sends every frame and receives its mask, one at a time")
            config = EdgeConfig(
                broker=broker.url,
                vehicle="demo",
                model=model,
                closed_loop=True,
                window=1,
                out=folder,
                sinks=("png", "video", "overlay", "jsonl"),
            )
            beside = {f"worker/{worker.name}": worker.pid, "broker": broker.pid}
            if code := run(str(bag), config, console, sampled_processes=beside):
                raise DemoError(f"the run in {folder} failed with code {code}")
    with console.status("writing the report"):
        report = write_report([folder])
    console.rule("Results")
    for line in _results(folder, report, VIDEO_FORMATS[config.video_codec].suffix):
        console.print(line, highlight=False)


def write_still(video: Path) -> Path:
    """Writes the middle frame of a video as a PNG file next to it; returns its path."""
    with av.open(str(video)) as container:
        assert container.duration is not None
        middle_s = container.duration / av.time_base / 2
        frames = takewhile(lambda frame: (frame.time or 0.0) <= middle_s, container.decode(video=0))
        frame = deque(frames, maxlen=1).pop()
    still = video.with_suffix(".png")
    cv2.imwrite(str(still), frame.to_ndarray(format="bgr24"))
    return still


@contextmanager
def _progress(console: Console, frames: int) -> Iterator[Callable[[], None]]:
    with Progress(console=console) as progress:
        task = progress.add_task("rendering", total=frames)
        yield lambda: progress.advance(task)
        progress.update(task, completed=frames)


class _StartLog:
    """Prints the worker's log until it is ready; later lines would break the progress bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ready = False

    def __call__(self, line: str) -> None:
        if not self._ready:
            self._console.print(line, highlight=False, markup=False)
        entry = read_line(line)
        self._ready = self._ready or (entry is not None and entry.event == READY)


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
