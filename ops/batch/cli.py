"""`skylane batch`: the command line, the progress bar and the closing table."""

import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ops.batch.executor import BagOutcome, BagProgress
from ops.batch.library import Library
from ops.batch.output.results import TABLE_NAME
from ops.batch.plan import BatchPlan
from ops.batch.run import BatchResult, run_batch
from ops.batch.settings import BatchSettings
from shared.errors import SkylaneError
from shared.flags import GroupedCommand, key_options, override, topic_name
from shared.quiet import is_quiet
from shared.runtime.processes import interrupt_on_termination
from shared.terminal_table import Table

_SHOWN_NAMES = 3  # Names of a list in one line; batch.json has all.

_options = partial(key_options, BatchSettings)


class IncompleteBatchError(SkylaneError):
    """Some bags have no results."""


@click.command(cls=GroupedCommand)
@click.argument("library", type=click.Path(path_type=Path))
@click.option("--model", required=True, type=topic_name("model"), help="Model that computes the masks.")
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the results. The same command continues a batch that was stopped, and does only what is new.",
)
@click.option("--verify", is_flag=True, help="Read finished bags and their results again, and compare their hashes.")
@_options("Model", "repository", "model_version", "engine", "device", "precision", "threads")
@_options("Frames and masks", "topics", "bits", "encodings", "resize", "demosaic", "masks", "pictures")
@_options("Execution", "executor", "processes", "ray_address")
def batch(library: Path, model: str, out: Path, *, verify: bool, **flags: Any) -> None:
    """Run a model over every recording below the folder LIBRARY: bags, video files and folders of images.

    Writes the masks of each bag to OUT/bags/NAME and a row per frame, with the share of each label, to OUT/frames.parquet.
    The exit code is 1 if a bag has no results; the others have theirs.
    """
    settings = override(BatchSettings(library=library, out=out, model=model), flags)
    console = Console(stderr=True)
    with interrupt_on_termination(), closing(_Watcher(console)) as watcher:
        try:
            result = run_batch(settings, watcher, verify=verify)
        except KeyboardInterrupt:
            watcher.close()
            click.echo(f"stopped: {watcher.done} bags are done; the same command continues", err=True)
            raise
    _show(result, out)
    if result.failed:
        raise IncompleteBatchError(
            f"{out}: {len(result.failed)} of {len(result.failed) + _done(result)} bags have no results, named above: "
            "mend or remove them, then run the same command"
        )


class _Watcher:
    """Shows a bar over the bytes of all bags on a terminal, elsewhere a line for each bag."""

    def __init__(self, console: Console) -> None:
        self.done = 0
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._console = console
        self._bar = Progress(*columns, console=console, transient=True, disable=is_quiet() or not console.is_terminal)
        self._task = self._bar.add_task("")
        self._sizes: dict[str, int] = {}
        self._shares: dict[str, float] = {}  # Of the bags that are under way: which part of each is done.
        self._frames: dict[str, int] = {}
        self._ended_bytes = 0
        self._ended_frames = 0
        self._began_s = time.monotonic()

    def begin(self, library: Library, planned: BatchPlan) -> None:
        """See BatchWatcher."""
        self._sizes = {bag.name: bag.size_bytes for bag in planned.pending}
        size_bytes = sum(self._sizes.values())
        parts = [f"bags: {len(library.bags)}", f"to do: {len(planned.pending)} ({size_bytes / 1e9:.2f} GB)"]
        parts += [
            f"{what}: {len(found)}"
            for found, what in ((planned.finished, "finished"), (planned.copies, "copies"))
            if found
        ]
        self._print(", ".join(parts))
        for name, reason in planned.redone.items():
            self._print(f"done again: {name}: {reason}")
        for name, before in planned.moved.items():
            self._print(f"moved: {name} has the results of {before}")
        if planned.stale:
            self._print(f"kept, but no longer in the library and not in the table: {_names(planned.stale)}")
        if library.ignored:
            self._print(f"no recordings: {_names(library.ignored)}")
        self._bar.update(self._task, total=size_bytes or 1)
        self._bar.start()

    def advance(self, progress: BagProgress) -> None:
        """See BatchWatcher."""
        self._frames[progress.bag] = progress.frames
        self._shares[progress.bag] = min(1.0, progress.frames / progress.total) if progress.total else 0.0
        self._update()

    def end(self, outcome: BagOutcome) -> None:
        """See BatchWatcher."""
        self._shares.pop(outcome.bag, None)
        self._frames.pop(outcome.bag, None)
        self._ended_bytes += self._sizes[outcome.bag]
        self._ended_frames += outcome.frames
        self.done += not outcome.error
        if outcome.error or not (is_quiet() or self._console.is_terminal):
            self._print(f"{outcome.bag}: {f'FAILED: {outcome.error}' if outcome.error else f'{outcome.frames} frames'}")
        self._update()

    def close(self) -> None:
        """Removes the bar."""
        self._bar.stop()

    def _update(self) -> None:
        frames = self._ended_frames + sum(self._frames.values())
        rate_hz = frames / max(1e-9, time.monotonic() - self._began_s)
        text = f"{self.done} of {len(self._sizes)} bags, {frames} frames, {rate_hz:.1f}/s"
        done_bytes = self._ended_bytes + sum(share * self._sizes[bag] for bag, share in self._shares.items())
        self._bar.update(self._task, completed=done_bytes, description=text)

    def _print(self, line: str) -> None:
        self._bar.console.print(Text(line), soft_wrap=True)


def _show(result: BatchResult, out: Path) -> None:
    """Prints results that the user may not expect, and the totals."""
    copies = {name: f"copy of {original}" for name, original in result.copies.items() if name not in result.failed}
    table = Table("bag", "result")
    for entries in (result.failed, result.unreadable, result.false_claims, copies):
        for name, text in sorted(entries.items()):
            table.add_row(Text(name), Text(text))
    console = Console()
    if table.row_count:
        console.print(table)
    earlier = f", {len(result.finished)} of them before" if result.finished else ""
    table_name = f"{out / TABLE_NAME}: {result.frames} frames" if not result.is_stopped else "no table: results"
    line = f"{table_name} of {_done(result)} bags{earlier}"
    console.print(Text(line), soft_wrap=True)


def _done(result: BatchResult) -> int:
    return len(result.done) + len(result.finished)


def _names(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN_NAMES} more (batch.json names them)" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more
