"""`skylane send`: pictures to workers, spread over them by load."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import IO, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from edge.run_summary import NOTHING_ANSWERED
from edge.transports.credentials import worker_address
from edge.upload.dispatcher import Ended, Spread
from edge.upload.grpc_client import UploadSettings
from edge.upload.image_files import found, sort_out
from shared import clock
from shared.errors import SkylaneError, unwritable_message
from shared.flags import FiniteRange, ValidatedText, check_version, topic_name
from shared.logs import configure_logging, get_logger, log_options
from shared.registry import Entry, load
from shared.terminal_table import Table

_LOG = get_logger("edge")

CALLERS = {
    "grpc": Entry("edge.upload.grpc_client:GrpcUploadClient", "transports"),
    "http": Entry("edge.upload.http_client:HttpUploadClient", "transports"),
}


def _addresses(text: str) -> list[str]:
    """Reads the addresses of workers, separated by commas.

    Raises:
        SkylaneError: one of them is not HOST:PORT.
    """
    return [str(worker_address(each)) for each in text.split(",")]


class UnwritableError(SkylaneError):
    """What a picture was answered cannot be kept."""


@click.command()
@click.argument("images", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--nodes",
    "-n",
    multiple=True,
    required=True,
    type=ValidatedText("HOST:PORT[,…]", _addresses),
    help="Address of a worker (repeatable).",
)
@click.option(
    "--transport",
    type=click.Choice([*CALLERS]),
    default="grpc",
    show_default=True,
    help="grpc: made ready for the model here; http: as they are, to /api/detect.",
)
@click.option(
    "--vehicle",
    "sender",
    type=topic_name("vehicle"),
    default="send",
    show_default=True,
    help="Name to send by; the one of the token, where there is a token.",
)
@click.option("--model", type=topic_name("model"), default="road-small", show_default=True)
@click.option("--model-version", "version", callback=check_version, help="[the worker's current one]")
@click.option(
    "--places", type=click.IntRange(1, 64), default=2, show_default=True, help="Pictures under way at a node."
)
@click.option("--codec", type=click.Choice(["raw", "jpeg", "png", "lz4", "zstd"]), default="jpeg", show_default=True)
@click.option("--quality", type=click.IntRange(1, 100), default=95, show_default=True, help="Of JPEG.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder of the annotated pictures.")
@click.option("--json", "lines", type=click.File("w", "utf-8"), help="A line of JSON a picture goes there; -: here.")
@click.option("--connect-timeout", "connect_timeout_s", type=FiniteRange(0.1), default=10.0, show_default=True)
@click.option("--answer-timeout", "answer_timeout_s", type=FiniteRange(0.1), default=60.0, show_default=True)
@log_options
@click.option(
    "--worker-tls-ca",
    "tls_ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Speak TLS to workers whose certificate this authority (PEM) signed; a token goes in SKYLANE_WORKER_TOKEN.",
)
def send(
    images: tuple[Path, ...],
    *,
    nodes: tuple[str, ...],
    transport: str,
    places: int,
    output: Path | None,
    lines: IO[str] | None,
    log_level: str | None,
    log_format: str | None,
    **asked: Any,
) -> None:
    """Send IMAGES (pictures, or folders of them) to workers; each goes to a node that has a free place.

    The exit code is 0, or 1 if a picture was corrupt or got no answer, 2 for a wrong command line, 3 if none was answered.
    """
    configure_logging(level=log_level, log_format=log_format, context={"node": "send", "vehicle": asked["sender"]})
    addresses = [address for node in nodes for address in _addresses(node)]
    console = Console(stderr=True)
    opened = load("transport", CALLERS, transport)
    settings = UploadSettings(**asked, annotate=output is not None)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=not console.is_terminal) as progress:
        files = found(images)
        looking = progress.add_task("looked through", total=len(files))
        whole, corrupt = sort_out(files, lambda: progress.advance(looking))
        for error in corrupt:
            _LOG.warning("picture left out", reason=str(error))
        sending = progress.add_task("answered", total=len(whole))
        ended: list[Ended] = []
        began_ns = last_ns = clock.now_ns()

        def record(each: Ended) -> None:
            nonlocal last_ns
            last_ns = clock.now_ns()  # Of a node that is not there is heard later.
            ended.append(each)
            _write(each, len(ended), lines, output)
            progress.advance(sending)

        spread = Spread(whole, record)
        spread.run(
            {
                address: [partial(opened, address, settings, spread.is_over)] * places
                for address in dict.fromkeys(addresses)
            }
        )
    taken_s = (last_ns - began_ns) / 1e9
    for node, why in spread.lost.items():
        _LOG.warning("worker gets no more pictures", address=node, reason=why)
    failed = [each for each in ended if each.told is None]
    for each in failed:
        _LOG.warning("picture not answered", picture=str(each.picture), reason=each.fault)
    results = console if lines is not None and lines.name == "-" else Console()
    results.print(_summary(ended, len(corrupt), taken_s))
    if output is not None and output.is_dir():
        results.print(
            f"The annotated pictures are in {output.resolve()}", markup=False, highlight=False, soft_wrap=True
        )
    if ended and len(failed) == len(ended):
        sys.exit(NOTHING_ANSWERED)
    sys.exit(1 if failed or corrupt else 0)


def _write(each: Ended, number: int, lines: IO[str] | None, output: Path | None) -> None:
    """What became of a picture, as a line and as a picture.

    Raises:
        UnwritableError: the disk does not take it.
    """
    if lines is not None:
        with _kept("--json", lines.name, lines.close):
            lines.write(json.dumps(_line(each), ensure_ascii=False) + "\n")
            lines.flush()
    if output is not None and each.told is not None and each.told.annotated is not None:
        with _kept("--output", output):
            output.mkdir(parents=True, exist_ok=True)
            (output / f"{number:05d}-{each.picture.stem}.jpg").write_bytes(each.told.annotated)


@contextmanager
def _kept(flag: str, path: str | Path, give_up: Callable[[], None] = lambda: None) -> Iterator[None]:
    """`give_up`: what is to be done where it cannot be written; what that says of the same is not told again."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):
            give_up()
        raise UnwritableError(unwritable_message(path, error, flag)) from error


def _line(each: Ended) -> Mapping[str, Any]:
    line: dict[str, Any] = {"picture": str(each.picture), "node": each.node}
    if each.told is None:
        return {**line, "error": each.fault}
    told = each.told
    times = {"bytes_up": told.bytes_up, "inference_ms": told.inference_ms, "total_ms": told.total_ms}
    return {**line, **times, **told.result}


def _summary(ended: Sequence[Ended], corrupt: int, taken_s: float) -> Table:
    """What each node did, and all of them together."""
    told = [each.told for each in ended if each.told is not None]
    title = (
        f"{len(ended) + corrupt} pictures in {taken_s:.1f} s: {len(told)} answered, {len(ended) - len(told)} failed, "
    )
    table = Table(title=f"{title}{corrupt} corrupt")
    table.add_column("node", no_wrap=True)
    for heading in ("answered", "failed", "upload MB/s", "mean inference ms", "mean total ms"):
        table.add_column(heading, justify="right")
    nodes = sorted({each.node for each in ended if each.node})
    for node in nodes:
        table.add_row(node, *_figures([each for each in ended if each.node == node], taken_s))
    if len(nodes) > 1:
        table.add_row(*(f"[bold]{figure}[/]" for figure in ("all", *_figures(ended, taken_s))))
    return table


def _figures(ended: Sequence[Ended], taken_s: float) -> tuple[str, ...]:
    told = [each.told for each in ended if each.told is not None]
    inferences = [each.inference_ms for each in told if each.inference_ms is not None]
    return (
        str(len(told)),
        str(len(ended) - len(told)),
        f"{sum(each.bytes_up for each in told) / 1e6 / max(taken_s, 1e-9):.2f}",
        f"{fmean(inferences):.1f}" if inferences else "",
        f"{fmean(each.total_ms for each in told):.1f}" if told else "",
    )
