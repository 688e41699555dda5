"""`skylane demo`: the whole journey on this machine, from a rendered bag to answers and the report of its run."""

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
from edge.cli import run
from edge.config import EdgeConfig
from edge.sinks.video_codec import VIDEO_FORMATS
from shared.broker.broker import Broker
from shared.errors import SkylaneError
from shared.imaging.opencv import cv2
from shared.log_lines import READY, read_line
from shared.runlog.run_folder import RUNS, free_folder

# What the PNG sink writes of a task, and what it is.
_PICTURES = {
    "masks_colour": "one picture a frame (masks/ has the class ids)",
    "pictures": "one picture a frame, with what was found drawn on it",
}


class DemoError(SkylaneError):
    """The demo cannot be shown."""


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the run. [runs/demo, or runs/demo-2 and so on where that is taken]",
)
@click.option("--models", type=click.Path(file_okay=False, path_type=Path), help="The model repository.")
@click.option("--model", default="road-small", show_default=True)
@click.option("--frames", type=click.IntRange(1, 10_000), default=60, show_default=True, help="To render and send.")
@click.option("--broker", "broker_kind", type=click.Choice(["auto", "mosquitto", "embedded"]), default="auto")
def demo(out: Path | None, models: Path | None, model: str, frames: int, broker_kind: str) -> None:
    """Render a drive into a bag, run a broker and a worker, replay the bag, and show answers and latency."""
    console = Console()
    folder = out or free_folder(RUNS / "demo")
    console.rule("1  A synthetic drive, as a Bayer camera would record it")
    with _progress(console, frames) as advance:
        bag = sample_bag(frames, advance)
    console.print(f"bag: {bag}", highlight=False)
    console.rule("2  A broker and a worker")
    with Broker.start(kind=broker_kind) as broker:
        console.print(broker.description, highlight=False)
        with Worker(broker.url, models=models or default_root(), model=model, on_line=_Teller(console)) as worker:
            console.rule("3  The vehicle: every frame out, every answer back, one at a time")
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
            if code := run(str(bag), config, console, beside=beside):
                raise DemoError(f"the run in {folder} did not end well (code {code})")
    with console.status("writing the report"):
        report = write_report([folder])
    console.rule("What to look at")
    console.print(f"{report}  where every millisecond went; any browser opens it, no network needed", highlight=False)
    for video in sorted(folder.glob(f"overlay_*{VIDEO_FORMATS[config.video_codec].suffix}")):
        console.print(f"{_still(video)}  one frame beside what the model sees in it", highlight=False)
        console.print(f"{video}  the whole drive; current browsers play it", highlight=False)
    for name, meaning in _PICTURES.items():
        if (folder / name).is_dir():
            console.print(f"{folder}/{name}  {meaning}", highlight=False)
    console.print(f"{folder}/results.jsonl  what the model said of each frame, for programs", highlight=False)
    console.print(f"{folder}/latency.csv  one row a frame, every stage of both nodes", highlight=False)


@contextmanager
def _progress(console: Console, frames: int) -> Iterator[Callable[[], None]]:
    with Progress(console=console) as progress:
        task = progress.add_task("rendering", total=frames)
        yield lambda: progress.advance(task)
        progress.update(task, completed=frames)


class _Teller:
    """Shows what the worker says until it is ready; its counts would break the progress bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ready = False

    def __call__(self, line: str) -> None:
        if not self._ready:
            self._console.print(line, highlight=False, markup=False)
        entry = read_line(line)
        self._ready = self._ready or (entry is not None and entry.event == READY)


def _still(video: Path) -> Path:
    """Writes the middle frame of a video as a PNG beside it; returns its path."""
    with av.open(str(video)) as container:
        assert container.duration is not None
        middle_s = container.duration / av.time_base / 2
        frames = takewhile(lambda frame: (frame.time or 0.0) <= middle_s, container.decode(video=0))
        frame = deque(frames, maxlen=1).pop()
    still = video.with_suffix(".png")
    cv2.imwrite(str(still), frame.to_ndarray(format="bgr24"))
    return still
