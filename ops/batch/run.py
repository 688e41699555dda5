"""Runs a batch: plans it, lets an executor process the unfinished bags, and writes the table of all frames."""

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from ops.batch.executor import EXECUTORS, BagOutcome, BagProgress, Executor
from ops.batch.library import Library, LibraryBag, scan
from ops.batch.output.results import TABLE_NAME, read_manifest, results_folder, staging_folder
from ops.batch.output.table import TablePart, merge
from ops.batch.plan import BatchPlan, plan
from ops.batch.settings import BatchSettings
from ops.batch.steps import BatchError
from shared.errors import unwritable_message
from shared.files import make_folder, natural_path_key, open_own, read_file, write_file
from shared.registry import load

RECORD_NAME = "batch.json"

_LOCK_NAME = ".lock"
_NOT_DONE = "not done, because the batch had to stop"


class BatchWatcher(Protocol):
    """Shows the progress of a batch."""

    def begin(self, library: Library, planned: BatchPlan) -> None:
        """Called once the library was compared with the results of earlier runs."""

    def advance(self, progress: BagProgress) -> None:
        """Called when a frame was written, or a bag is started again."""

    def end(self, outcome: BagOutcome) -> None:
        """Called when a bag is done, or has failed."""


@dataclass(slots=True)
class BatchResult:
    """The result of a batch: rows of the table, and bags by outcome."""

    frames: int = 0  # Rows of the table.
    done: list[str] = field(default_factory=list)  # Bags of this run.
    finished: list[str] = field(default_factory=list)  # Bags of earlier runs.
    copies: dict[str, str] = field(default_factory=dict)  # Names of copies, with the name of the bag that was done.
    failed: dict[str, str] = field(default_factory=dict)  # Reasons by name: bags, links, unreadable folders.
    # Notes on frames that were left out, by the name of their bag.
    unreadable: dict[str, str] = field(default_factory=dict)
    false_claims: dict[str, str] = field(default_factory=dict)  # Wrong statements of bags about themselves.
    is_stopped: bool = False  # True if nothing more could be written; there is no table then.


def run_batch(settings: BatchSettings, watcher: BatchWatcher, *, verify: bool = False) -> BatchResult:
    """Processes every bag of a library without results, then writes `frames.parquet` and `batch.json`.

    An interrupted or killed run loses only the bags that it was doing; the next one continues. Until all bags are done or have
    failed, there is no `frames.parquet`.

    Args:
        settings: The library, the model and what to write.
        watcher: Gets the progress, in the calling thread.
        verify: Whether to compare finished bags and their results with the hashes in their manifests.

    Raises:
        SkylaneError: the library or the model cannot be used, or another batch writes into the same folder.
    """
    settings = settings.pinned()
    with _folder_of(settings.out):
        library = scan(settings.library, settings.out)
        planned = plan(
            library.bags, settings.out, settings.identity(), _known_hashes(settings.out, library), verify=verify
        )
        watcher.begin(library, planned)
        result = BatchResult(copies=planned.copies, failed=dict(library.refused))
        result.finished = [bag.name for bag in planned.finished]
        try:
            if planned.pending:
                (settings.out / TABLE_NAME).unlink(missing_ok=True)
                _do(planned, settings, watcher, result)
            if not result.is_stopped:
                _write_table(settings, result)
                _write_record(settings, library, planned, result)
        except OSError as error:
            raise BatchError(unwritable_message(error.filename or settings.out, error, "--out")) from error
    return result


@contextmanager
def _folder_of(out: Path) -> Iterator[None]:
    """Locks a folder against other batches, and deletes unfinished results in it, before and after.

    Raises:
        BatchError: another batch writes into it, or it cannot be written.
    """
    with ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open_own(out / _LOCK_NAME))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BatchError(f"another batch writes into {out}: wait for its end, or choose another --out") from error
        except OSError as error:
            raise BatchError(unwritable_message(error.filename or out, error, "--out")) from error
        shutil.rmtree(staging_folder(out), ignore_errors=True)
        stack.callback(shutil.rmtree, staging_folder(out), ignore_errors=True)
        yield


def _do(planned: BatchPlan, settings: BatchSettings, watcher: BatchWatcher, result: BatchResult) -> None:
    """Processes the pending bags, the largest first, so that no large bag runs alone at the end."""
    executor: Executor = load("executor", EXECUTORS, settings.executor)()
    bags = sorted(planned.pending, key=lambda bag: (-bag.size_bytes, bag.name))
    missing = {bag.name for bag in bags}
    with closing(executor.run(bags, settings, watcher.advance)) as outcomes:
        for outcome in outcomes:
            missing.remove(outcome.bag)
            watcher.end(outcome)
            if outcome.error:
                result.failed[outcome.bag] = outcome.error
            else:
                result.done.append(outcome.bag)
            if outcome.stops:
                result.is_stopped = True
                break
    result.failed |= dict.fromkeys(sorted(missing), _NOT_DONE)
    for copy, original in planned.copies.items():
        if original in result.failed:
            result.failed[copy] = f"has the content of {original}, which failed"


def _write_table(settings: BatchSettings, result: BatchResult) -> None:
    """Writes the table in a temporary file, which replaces the last one."""
    card = settings.card()
    parts = []
    for name in sorted((*result.done, *result.finished), key=lambda name: natural_path_key(PurePosixPath(name))):
        folder = results_folder(settings.out, name)
        parts.append(TablePart(folder / TABLE_NAME, name, folder.relative_to(settings.out).as_posix()))
        manifest = read_manifest(folder)
        if manifest is not None and manifest.false_claims:
            result.false_claims[name] = "; ".join(manifest.false_claims)
        if manifest is not None and manifest.unreadable:
            result.unreadable[name] = f"{manifest.unreadable} unreadable frames, the first: {manifest.first_unreadable}"
    staging = staging_folder(settings.out)
    make_folder(staging, settings.out)
    path = staging / TABLE_NAME
    result.frames = merge(parts, path, card.labels.names, card.name, card.version)
    path.replace(settings.out / TABLE_NAME)


def _write_record(settings: BatchSettings, library: Library, planned: BatchPlan, result: BatchResult) -> None:
    copies = [bag for bag in library.bags if bag.name in planned.copies]
    record = {
        "skylane": version("skylane"),
        "library": str(settings.library),
        "identity": settings.identity(),
        "frames": result.frames,
        "bags": sorted((*result.done, *result.finished)),
        "copies": {
            bag.name: {"of": planned.copies[bag.name], "sha256": planned.hashes[bag]} | _state(bag) for bag in copies
        },
        "failed": dict(sorted(result.failed.items())),
        "unreadable": result.unreadable,
        "false_claims": result.false_claims,
        "ignored": library.ignored,
        "stale": planned.stale,
    }
    write_file(settings.out / RECORD_NAME, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _known_hashes(out: Path, library: Library) -> dict[LibraryBag, str]:
    """Returns the hashes of copies that an earlier run has read, and that have not changed since."""
    try:
        copies: Mapping[str, Any] = json.loads(read_file(out / RECORD_NAME))["copies"]
        return {
            bag: str(copies[bag.name]["sha256"])
            for bag in library.bags
            if bag.name in copies and _state(bag).items() <= copies[bag.name].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _state(bag: LibraryBag) -> dict[str, int]:
    return {"size_bytes": bag.size_bytes, "mtime_ns": bag.mtime_ns}
