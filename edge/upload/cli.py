"""The command `skylane send`: uploads images to workers and balances them by load."""

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

from edge.run import NOTHING_ANSWERED
from edge.upload.client import UploadClient, UploadSettings, check_images, find_images
from edge.upload.dispatcher import UploadDispatcher, UploadOutcome
from shared import clock
from shared.errors import SkylaneError, unwritable_message
from shared.files import write_file
from shared.flags import ValidatedText, key_options, override
from shared.logs import configure_logging, get_logger
from shared.mqtt.broker_options import NodeSection
from shared.network.endpoint import Endpoint
from shared.quiet import progress_console
from shared.terminal_table import Table

_LOG = get_logger("edge")

_options = partial(key_options, UploadSettings, "Options")


def _addresses(text: str) -> list[str]:
    """Parses the addresses of workers, separated by commas."""
    return [str(Endpoint.parse(each)) for each in text.split(",")]


class UnwritableError(SkylaneError):
    """A result cannot be written."""


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
@_options("transport", "vehicle", "model", "model_version", "concurrency", "codec", "quality")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for images with their results drawn on."
)
@click.option(
    "--json", "lines", type=click.File("w", "utf-8"), help="File for one JSON line per image; - for standard output."
)
@_options("connect_timeout_s", "answer_timeout_s")
@key_options(NodeSection, "Options", "log_level", "log_format")
@_options("worker_tls_ca")
def send(
    images: tuple[Path, ...],
    *,
    nodes: tuple[str, ...],
    output: Path | None,
    lines: IO[str] | None,
    log_level: str | None,
    log_format: str | None,
    **flags: Any,
) -> None:
    """Send IMAGES (image files, or folders of them) to workers, balanced by load.

    The exit code is 0, or 1 if an image was corrupt or got no result, 2 for a wrong command line, 3 if no image got one.
    """
    settings = override(UploadSettings(annotate=output is not None), flags)
    configure_logging(level=log_level, log_format=log_format, context={"node": "send", "vehicle": settings.vehicle})
    addresses = dict.fromkeys(address for node in nodes for address in _addresses(node))
    console = progress_console()
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=not console.is_terminal) as progress:
        files = find_images(images)
        if lines is not None:
            lines.flush()  # Opens the file, before the work whose results it takes.
        checking = progress.add_task("checked", total=len(files))
        valid, corrupt = check_images(files, lambda: progress.advance(checking))
        for error in corrupt:
            _LOG.warning("image skipped", reason=str(error))
        sending = progress.add_task("answered", total=len(valid))
        outcomes: list[UploadOutcome] = []
        started_ns = ended_ns = clock.now_ns()

        def record(outcome: UploadOutcome) -> None:
            nonlocal ended_ns
            ended_ns = clock.now_ns()  # The call as a whole ends later if it has waited for a lost worker.
            outcomes.append(outcome)
            _write(outcome, len(outcomes), lines, output)
            progress.advance(sending)

        dispatcher = UploadDispatcher(valid, record)
        dispatcher.run(
            {
                address: [partial(UploadClient, address, settings, dispatcher.has_work)] * settings.concurrency
                for address in addresses
            }
        )
    for address, reason in dispatcher.lost.items():
        _LOG.warning("worker gets no more images", address=address, reason=reason)
    failed = [outcome for outcome in outcomes if outcome.result is None]
    for outcome in failed:
        _LOG.warning("image not answered", image=str(outcome.image), reason=outcome.fault)
    results = console if lines is not None and lines.name == "-" else Console()
    results.print(_summary(outcomes, len(corrupt), (ended_ns - started_ns) / 1e9))
    if output is not None and output.is_dir():
        results.print(f"The annotated images are in {output.resolve()}", markup=False, highlight=False, soft_wrap=True)
    if outcomes and len(failed) == len(outcomes):
        sys.exit(NOTHING_ANSWERED)
    sys.exit(1 if failed or corrupt else 0)


def _write(outcome: UploadOutcome, number: int, lines: IO[str] | None, output: Path | None) -> None:
    """Writes the JSON line of an image, and its annotated copy.

    Raises:
        UnwritableError: a file cannot be written.
    """
    if lines is not None:
        with _write_errors("--json", lines.name, lines.close):
            lines.write(json.dumps(_line(outcome)) + "\n")
            lines.flush()
    if output is not None and outcome.result is not None and outcome.result.annotated is not None:
        with _write_errors("--output", output):
            write_file(output / f"{number:05d}-{outcome.image.stem}.jpg", outcome.result.annotated)


@contextmanager
def _write_errors(option: str, path: str | Path, close: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Turns an OSError into an error that names the option; calls `close` and ignores further errors of it."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):
            close()
        raise UnwritableError(unwritable_message(path, error, option)) from error


def _line(outcome: UploadOutcome) -> Mapping[str, Any]:
    line: dict[str, Any] = {"picture": str(outcome.image), "node": outcome.worker}
    result = outcome.result
    if result is None:
        return {**line, "error": outcome.fault}
    times = {"bytes_up": result.bytes_up, "inference_ms": result.inference_ms, "total_ms": result.total_ms}
    return {**line, **times, **result.result}


def _summary(outcomes: Sequence[UploadOutcome], corrupt: int, duration_s: float) -> Table:
    """Returns a table with the totals of each worker, and of all together."""
    answered = sum(outcome.result is not None for outcome in outcomes)
    table = Table(
        title=f"{len(outcomes) + corrupt} images in {duration_s:.1f} s: {answered} answered, "
        f"{len(outcomes) - answered} failed, {corrupt} corrupt"
    )
    table.add_column("node", no_wrap=True)
    for heading in ("answered", "failed", "upload MB/s", "mean inference ms", "mean total ms"):
        table.add_column(heading, justify="right")
    workers = sorted({outcome.worker for outcome in outcomes if outcome.worker})
    for worker in workers:
        table.add_row(worker, *_totals([each for each in outcomes if each.worker == worker], duration_s))
    if len(workers) > 1:
        table.add_row(*(f"[bold]{cell}[/]" for cell in ("all", *_totals(outcomes, duration_s))))
    return table


def _totals(outcomes: Sequence[UploadOutcome], duration_s: float) -> tuple[str, ...]:
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    inferences = [result.inference_ms for result in results if result.inference_ms is not None]
    return (
        str(len(results)),
        str(len(outcomes) - len(results)),
        f"{sum(result.bytes_up for result in results) / 1e6 / max(duration_s, 1e-9):.2f}",
        f"{fmean(inferences):.1f}" if inferences else "",
        f"{fmean(result.total_ms for result in results):.1f}" if results else "",
    )
