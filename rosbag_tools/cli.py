"""`skylane bag`: makes, inspects, crops, converts, extracts and verifies rosbags without ROS."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from rosbag_tools.bag_format import COMPRESSIONS, BagFormat
from rosbag_tools.data_sets import LAYOUTS
from rosbag_tools.drive.recording import DrivePlan, record
from rosbag_tools.drive.weather import WEATHERS
from rosbag_tools.editing import rewrite
from rosbag_tools.extraction import extract as extract_frames
from rosbag_tools.importing import GAP_S, find_frames, write_drive
from rosbag_tools.inspection import BagReport, TopicReport, inspect
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.metadata import named
from rosbag_tools.verification import verify as findings_of
from rosbag_tools.verification import without_checksums
from shared.catalogue import CATALOGUE, Catalogue, fetch_recording
from shared.errors import SkylaneError
from shared.flags import FiniteRange, WholeRange
from shared.imaging.bit_depth import Bits
from shared.imaging.frames import Layout
from shared.imaging.labels import labels_from
from shared.quiet import progress_console
from shared.sanitize import printable
from shared.terminal_table import Table, result_table

_Command = TypeVar("_Command", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)
_SECONDS = FiniteRange(min=0)
_BAYER_LAYOUTS = [layout.value for layout in Layout if layout.is_bayer]


_topics = click.option(
    "--topic", "-t", "topics", multiple=True, metavar="TOPIC", help="Topic to use (repeatable). [all]"
)
_format = click.option(
    "--format",
    "bag_format",
    type=click.Choice([each.value for each in BagFormat]),
    help="ROS 1, or ROS 2 with sqlite or MCAP. [by the name of OUT: ROS 1 for .bag, one MCAP file for .mcap, a "
    "ROS 2 folder otherwise]",
)
_compression = click.option("--compression", type=click.Choice(COMPRESSIONS), default="none", show_default=True)
_force = click.option("--force", "overwrite", is_flag=True, help="Replace an existing bag.")


def _target(command: _Command) -> _Command:
    """Adds the options of the bag that is written."""
    return _format(_compression(_force(command)))


@click.group()
def bag() -> None:
    """Make, inspect, crop and convert rosbags without ROS."""


@bag.command()
@click.argument("name", required=False)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/bags"),
    show_default=True,
    help="Folder.",
)
@CATALOGUE
def fetch(name: str | None, out: Path, catalogue: Catalogue) -> None:
    """Download a recording of the catalogue. Without NAME, list the catalogue."""
    if name is None:
        rows = [(each, *entry.cells) for each, entry in catalogue.bags.items()]
        headings = {"name": "<!", "recording": "<", "MB": ">", "licence": "<"}
        Console().print(result_table("Recordings to fetch", headings, rows))
        return
    target, entry = fetch_recording(catalogue, name, out), catalogue.bag(name)
    click.echo(f"{target}: {entry.description}; {entry.licence}")


@bag.command()
@click.argument("out", type=_PATH)
@_target
@click.option(
    "--seed",
    type=WholeRange(min=0),
    default=0,
    show_default=True,
    help="Random seed; the same seed gives the same drive.",
)
@click.option("--frames", type=WholeRange(min=1), help="Number of frames. [300, or by --duration]")
@click.option("--duration", "duration_s", type=FiniteRange(min=0, min_open=True), help="Seconds to drive.")
@click.option("--rate", "rate_hz", type=FiniteRange(min=0, min_open=True), default=10.0, show_default=True)
@click.option("--weather", type=click.Choice(sorted(WEATHERS)), default="clear", show_default=True)
@click.option("--layout", type=click.Choice(_BAYER_LAYOUTS), default=Layout.BAYER_RGGB8.value, show_default=True)
@click.option("--static-camera", is_flag=True, help="Place the camera at the kerb; only the traffic moves.")
@click.option("--width", type=WholeRange(min=16, max=8192), default=1936, show_default=True)
@click.option("--height", type=WholeRange(min=16, max=8192), default=1216, show_default=True)
def make(
    *,
    out: Path,
    bag_format: str | None,
    compression: str,
    frames: int | None,
    duration_s: float | None,
    rate_hz: float,
    layout: str,
    overwrite: bool,
    **options: Any,
) -> None:
    """Render a synthetic drive into the bag OUT.

    OUT is a .bag file for ROS 1, or a folder or .mcap file for ROS 2.
    """
    if frames is not None and duration_s is not None:
        raise click.UsageError("give --frames or --duration, not both")
    if frames is None:
        frames = 300 if duration_s is None else max(1, round(duration_s * rate_hz))
    plan = DrivePlan(frames=frames, rate_hz=rate_hz, layout=Layout(layout), **options)
    with _progress("recording", frames) as (bar, task):
        record(
            out,
            plan,
            bag_format=bag_format,
            compression=compression,
            overwrite=overwrite,
            progress=lambda: bar.advance(task),
        )
    click.echo(f"{out}: {frames} frames, {frames / rate_hz:.1f} s, seed {plan.seed}, {plan.weather}, {layout}")


@bag.command("import")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=_PATH)
@click.option("--layout", type=click.Choice(list(LAYOUTS)), required=True, help="Data set in FOLDER.")
@click.option("--images", metavar="PATTERN", help="Images in FOLDER, such as 'images/*.png'. [by the layout]")
@click.option("--truth", metavar="PATTERN", help="Their label images, with the same text for each *. [by the layout]")
@click.option("--labels", metavar="NAME|FILE", help="Label set, or label file with names and colours. [by the layout]")
@click.option(
    "--rate",
    "rate_hz",
    type=FiniteRange(min=0, min_open=True, max=1000),
    help="Images per second, in the order of their names. [by the numbers in the names]",
)
@_target
def import_(
    *,
    folder: Path,
    out: Path,
    layout: str,
    images: str | None,
    truth: str | None,
    labels: str | None,
    rate_hz: float | None,
    **target: Any,
) -> None:
    """Make a bag of the images and label images in FOLDER."""
    if (images is None) != (truth is None):
        raise click.UsageError("give both --images and --truth, or neither")
    if not LAYOUTS[layout].patterns and None in (images, labels):
        raise click.UsageError(f"--layout {layout} needs --images, --truth and --labels")
    own = None if labels is None else labels_from(labels)
    data = find_frames(folder, LAYOUTS[layout], images=images, truth=truth, labels=own, rate_hz=rate_hz)
    with _progress("importing", len(data.frames)) as (bar, task):
        write_drive(data, out, progress=lambda: bar.advance(task), **target)
    apart = f" in {data.sequences} sequences, {GAP_S:g} s apart" if data.sequences > 1 else ""
    click.echo(
        f"{out}: {len(data.frames)} frames{apart}, {data.frames[-1].offset_ns / 1e9:.1f} s; {data.labelled} with labels, "
        f"{len(data.frames) - data.labelled} without"
    )


@bag.command()
@click.argument("path", metavar="BAG", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(path: Path, *, as_json: bool) -> None:
    """Show the topics of BAG, with types, resolutions, rates and gaps."""
    report = inspect(path)
    if as_json:
        click.echo(json.dumps(asdict(report), indent=2))
    else:
        _show(report)


@bag.command()
@click.argument("path", metavar="BAG", type=_PATH)
@click.argument("out", type=_PATH)
@click.option(
    "--start",
    "start_s",
    type=_SECONDS,
    default=0.0,
    help="Start of the part, in seconds after the bag's first message.",
)
@click.option("--duration", "duration_s", type=_SECONDS, help="Seconds to take.")
@click.option("--end", "end_s", type=_SECONDS, help="End of the part, in seconds after the bag's first message.")
@_topics
@_target
def crop(
    *,
    path: Path,
    out: Path,
    start_s: float,
    duration_s: float | None,
    end_s: float | None,
    topics: tuple[str, ...],
    **target: Any,
) -> None:
    """Write a part of BAG, by time or topics, to OUT."""
    if duration_s is not None and end_s is not None:
        raise click.UsageError("give --duration or --end, not both")
    if end_s is not None:
        if end_s <= start_s:
            raise click.UsageError(f"--end {end_s} is not after --start {start_s}")
        duration_s = end_s - start_s
    _rewrite(path, out, topics=topics, start_s=start_s, duration_s=duration_s, **target)


@bag.command()
@click.argument("path", metavar="BAG", type=_PATH)
@click.argument("out", type=_PATH)
@_target
def convert(path: Path, out: Path, **target: Any) -> None:
    """Write BAG to OUT in another format or compression."""
    _rewrite(path, out, **target)


@bag.command()
@click.argument("path", metavar="BAG", type=_PATH)
@click.argument("folder", type=_PATH)
@_topics
@click.option("--raw", is_flag=True, help="Do not demosaic Bayer frames, and do not scale 16-bit values.")
@click.option(
    "--bits",
    type=click.Choice(get_args(Bits)),
    default="auto",
    show_default=True,
    help="Bits of the values in 16-bit images; auto: measured in the first frames of each camera.",
)
@click.option(
    "--encoding",
    "encodings",
    multiple=True,
    metavar="[TOPIC=]ENCODING",
    help="Encoding of raw images, of all topics or of one, instead of the recorded one (repeatable).",
)
def extract(path: Path, folder: Path, **options: Any) -> None:
    """Write the frames of BAG to FOLDER as PNG files.

    Each camera has its own folder. Frames that cannot be decoded are named. The exit code is 1 if there is a camera of which none can.
    """
    with _progress("extracting", None) as (bar, task):
        extracted = extract_frames(
            path,
            folder,
            progress=lambda total: bar.update(task, advance=1, total=total),
            **options,
        )
    for reason in extracted.unreadable:
        click.echo(printable(f"left out: {reason}"), err=True)
    click.echo(f"{folder}: {extracted.frames} frames, {len(extracted.unreadable)} left out")
    reasons = "; ".join(f"{camera}: {reason}" for camera, reason in extracted.without_frames.items())
    if reasons or not extracted.frames:
        raise SkylaneError(
            f"{path}: no frame was written {f'of {reasons}' if reasons else 'because its image topics have no messages'}"
        )


@bag.command()
@click.argument("path", metavar="BAG", type=_PATH)
def verify(path: Path) -> None:
    """Read every message of BAG, and report the damaged ones.

    A message is damaged if it is truncated, undecodable or implausible. The exit code is 1 if there are any.
    """
    with Bag(path) as opened:
        total, unchecked = opened.message_count, without_checksums(opened)
    with _progress("verifying", total) as (bar, task):
        findings = list(findings_of(path, lambda _: bar.advance(task)))
    for finding in findings:
        where = finding.place
        if finding.topic:
            message = "" if finding.sequence is None else f" message {finding.sequence}"
            where = f"{where}, {finding.topic}{message}"
        if finding.stamp_ns is not None:
            where = f"{where}, stamp {finding.stamp_ns} ns"
        click.echo(printable(f"{where}: {finding.reason}"))
    if unchecked:
        text = f"no checksums in {named(unchecked)}: changed bytes of a message that stays readable are not found"
        click.echo(printable(f"note: {text}"))
    if findings:
        raise SkylaneError(f"{path}: faults among its {total} messages: {len(findings)}, named above")
    click.echo(f"{path}: {total} messages, all intact")


def _rewrite(path: Path, out: Path, **options: Any) -> None:
    with Bag(path) as opened:
        total = opened.message_count
    with _progress("writing", total) as (bar, task):
        rewritten = rewrite(path, out, progress=lambda _: bar.advance(task), **options)
    for topic, reason in rewritten.left_out.items():
        click.echo(printable(f"left out {topic}: {reason}"), err=True)
    click.echo(f"{out}: {rewritten.messages} messages")


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[tuple[Progress, TaskID]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = progress_console()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar, bar.add_task(what, total=total)


def _show(report: BagReport) -> None:
    console = Console()
    console.print(
        f"{report.path}  {report.format}, {report.duration_s:.3f} s, {report.messages} messages, "
        f"{report.size_bytes / 1e6:.1f} MB{', synthetic drive' if report.synthetic else ''}\nsha256 {report.sha256}",
        markup=False,
        highlight=False,
    )
    table = Table()
    for heading in ("topic, type", "messages", "picture", "rate", "gaps"):
        table.add_column(heading, justify="right" if heading in ("messages", "rate") else "left")
    for topic in report.topics:
        unreadable = [f"{topic.unreadable} unreadable"] if topic.unreadable else []
        table.add_row(
            f"{escape(printable(topic.name))}\n[dim]{escape(printable(topic.type))}[/]"
            + (f"\n{escape(printable(topic.fault))}" if topic.fault else ""),
            str(topic.count),
            "\n".join(
                filter(
                    None,
                    (
                        *topic.resolutions,
                        *(escape(printable(each)) for each in topic.encodings),
                        topic.bits,
                        *unreadable,
                    ),
                )
            ),
            f"{topic.rate_hz:.2f} Hz" if topic.rate_hz else "",
            _gaps(topic),
        )
    console.print(table)
    for note in report.notes:
        console.print(printable(f"note: {note}"), markup=False, highlight=False)


def _gaps(topic: TopicReport) -> str:
    if topic.worst_gap_s is None:
        return "none" if topic.rate_hz else ""
    return f"{topic.gaps}, worst {topic.worst_gap_s:.3f} s"
