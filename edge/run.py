"""Runs a source as configured: opens all parts, plays, writes the manifest and prints the summary."""

import os
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from rich.console import Console

from edge import run_record
from edge.config import EdgeConfig
from edge.ledger import RunCounts
from edge.node import EdgeNode, RunSettings
from edge.presenting.presentation import Presentation
from edge.presenting.presented_run import OUTPUTS_FOLDER, OutputRecorder, open_presentation
from edge.progress import run_with_progress
from edge.reuse.opening import find_local_model, open_reuse
from edge.sinks.sink import SINKS, FrameResult, PresentedTick, Sink
from edge.sinks.writer import check_sinks
from edge.sources.source import SourceError, is_live, open_source
from edge.transports.opening import open_transport
from edge.transports.transport import Transport, TransportEvents
from edge.view.live_view import open_view
from shared.errors import SkylaneError, unwritable_message
from shared.files import make_folder
from shared.logs import LogFormat, get_logger
from shared.messages.model_card import ModelCard, check_request_options
from shared.quiet import progress_console
from shared.registry import Entry, load, require
from shared.resources.sampler import RESOURCES_NAME, ResourceSampler
from shared.runlog.latency_log import CSV_NAME, WITH_RESULT, LogError, LogWriter, Outcome, read_rows
from shared.runlog.latency_table import outcome_table, stage_table, summarise, vehicle_result_tables
from shared.runlog.presented_log import PresentedLog
from shared.runlog.repair import repair_all
from shared.runlog.run_folder import contents, discard_unless_started, run_folder
from shared.runlog.run_manifest import reserve_space, write_manifest
from shared.runtime.processes import on_termination_signals
from shared.task import task_named

_LOG = get_logger("edge")


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A run that has ended: its folder, totals, errors and printed lines."""

    folder: Path
    outcomes: Mapping[Outcome, int]  # Includes frames whose rows were lost to a full disk.
    faults: Sequence[SkylaneError]
    notes: Sequence[str]  # Lines to print before the tables of its report.
    remarks: Sequence[str]  # Lines to print after them.


def run(
    source_name: str,
    config: EdgeConfig,
    console: Console,
    *,
    sampled_processes: Mapping[str, int] = MappingProxyType({}),
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Plays a source, prints the summary and returns the exit code: 0, 1 for an error, or `NOTHING_ANSWERED`.

    Args:
        source_name: A bag, a video file, a folder of images or a camera.
        config: The configuration of the run.
        console: Gets the summary.
        sampled_processes: Further processes whose resource use is sampled; process ids by node (`worker/<name>`,
            `broker` or `link`).
        on_ready: Called when everything is connected and open, before the first frame is due.

    Raises:
        SkylaneError: the run could not begin.
    """
    ended = play(
        source_name,
        config,
        progress_console(),
        sampled_processes=sampled_processes,
        on_ready=on_ready,
        on_begin=_stop_on_signals,
    )
    for line in ended.notes:
        console.print(line, markup=False, highlight=False)
    rows = print_report(ended.folder, console, ended.remarks, ended.outcomes)
    common = common_faults(rows, source_name, config.model) if len(rows) == sum(ended.outcomes.values()) else ()
    return exit_code(rows, [*ended.faults, *common], config.log_format)


def play(
    source_name: str,
    config: EdgeConfig,
    progress: Console,
    *,
    sampled_processes: Mapping[str, int] = MappingProxyType({}),
    on_ready: Callable[[], None] = lambda: None,
    on_begin: Callable[[EdgeNode], None] = lambda _: None,
    on_result: Callable[[FrameResult | PresentedTick], None] | None = None,
) -> RunEnd:
    """Plays a source and writes the folder of the run; prints nothing but its progress. Any thread may call it.

    Args:
        source_name: See `run`.
        config: The configuration of the run.
        progress: Shows a bar if it is a terminal.
        sampled_processes: See `run`.
        on_ready: See `run`.
        on_begin: Called with the node before the first frame is due; the node may be stopped from then on.
        on_result: Called with each tick if the run has a presenter, otherwise with each result as it arrives.

    Raises:
        SkylaneError: the run could not begin.
    """
    session = uuid.uuid4().hex[:12]
    config = config.seeded()
    folder = config.out or run_folder(config.vehicle)
    with ExitStack() as stack, open_follower("--otel", config.otel, config) as export:
        source = open_source(
            source_name,
            topics=config.topics,
            start_offset_s=config.start_offset_s,
            duration_s=config.playback_duration_s,
            bits=config.bits,
            encodings=config.encodings,
        )
        stack.callback(source.close)
        events = TransportEvents()
        transport = stack.enter_context(closing(open_transport(config, session, events=events)))
        card = _wait_for_card(transport, config, events)
        config = _with_sinks(config, card)
        reuse = stack.enter_context(open_reuse(config, card))
        presentation = stack.enter_context(open_presentation(config, card))
        view = stack.enter_context(open_view(config, card, presentation))
        _close_killed_runs(folder)
        before = contents(folder)
        log = stack.enter_context(LogWriter(folder))
        begin = stack.enter_context(discard_unless_started(folder, before))
        sampler = stack.enter_context(_open_sampler(folder, config, sampled_processes))
        _warn_of_training(source_name, source.provenance, config, card)
        manifest = run_record.started(config, session, source.provenance, card, reuse)
        write_manifest(folder, manifest)
        reserve_space(folder)
        recorder = stack.enter_context(_open_recorder(presentation, config, folder, card))
        sinks = open_sinks(config, folder, card)
        if on_result is not None and presentation is not None:
            presentation.listeners.append(on_result)
        elif on_result is not None:
            sinks.append(_ListeningSink(on_result))
        collector = stack.enter_context(open_follower("--metrics", config.metrics, config, transport))
        followers = [each for each in (view, collector) if each is not None]
        listeners = [each.ended for each in followers] + ([] if export is None else [export])
        settings = RunSettings(config, session, card, is_live(source_name), reuse, presentation, listeners)
        node = EdgeNode(source, transport, log, sinks, settings, events=events)
        for follower in followers:
            follower.counts = node.counts
        on_ready()
        begin()
        _LOG.info(
            "run started",
            session=session,
            source=source_name,
            model=f"{card.name} {card.version}",
            transport=config.transport,
            folder=str(folder.resolve()),
        )
        on_begin(node)
        faults = _play_to_the_end(node, recorder, _expected_frames(config, source.frame_count), progress)
        counts = node.counts()
        _LOG.info("run ended", read=counts.read, **{outcome.value: n for outcome, n in counts.outcomes.items()})
        manifest |= {  # The provenance can gain notes while frames are read.
            "source": _with_notes(source.provenance, node.pacing_notes),
            "sampling": sampler.account(),
        }
        try:
            write_manifest(folder, run_record.ended(manifest, counts, log.rows_lost, reuse, recorder))
        except LogError as error:
            faults.append(error)
        remarks = [
            *node.pacing_notes,
            *retry_lines(counts),
            *answered_by_lines(counts, card),
            *unused_lines(transport.unused()),
            *(reuse.lines(counts, is_open_loop=settings.is_live or not config.closed_loop) if reuse else ()),
            *(recorder.lines() if recorder else ()),
        ]
        if log.rows_lost:
            faults.append(LogError(f"{log.rows_lost} rows of {folder / CSV_NAME} were not written: {log.fault}"))
    return RunEnd(
        folder, counts.outcomes, faults, [*_late_lines(node.results_too_late), *sampler.report_lines()], remarks
    )


# Contexts that follow a run and need the library of an extra, by option.
_FOLLOWERS = {
    "--metrics": Entry("edge.prometheus_metrics:open_metrics", "metrics"),
    "--otel": Entry("edge.frame_spans:export_rows", "otel"),
}


def open_follower(option: str, value: str | None, *arguments: Any) -> AbstractContextManager[Any]:
    """Returns the context for an option in _FOLLOWERS; without a value, a context that yields None.

    Raises:
        MissingExtraError: the library of the option is not installed.
    """
    return nullcontext() if value is None else load("option", _FOLLOWERS, option)(*arguments)


class _ListeningSink:
    """A sink that calls a function with each result as it arrives."""

    in_order = False

    def __init__(self, on_result: Callable[[FrameResult], None]) -> None:
        self.write = on_result

    def close(self) -> None:
        """See Sink."""


def _play_to_the_end(
    node: EdgeNode, recorder: OutputRecorder | None, frame_count: int | None, progress: Console
) -> list[SkylaneError]:
    """Runs a node and returns the errors of its run; all its files but the manifest are then complete."""
    faults: list[SkylaneError] = []
    try:
        with recorder or nullcontext():
            run_with_progress(node, frame_count, progress)
    except SkylaneError as error:
        faults.append(error)
    faults += node.faults
    return faults if recorder is None else faults + recorder.faults


def _with_notes(provenance: Mapping[str, Any], notes: Sequence[str]) -> Mapping[str, Any]:
    before = provenance.get("notes", [])
    return {**provenance, "notes": [*before, *notes]} if notes else provenance


def _wait_for_card(transport: Transport, config: EdgeConfig, events: TransportEvents) -> ModelCard:
    """Returns the card of the model after checking that it supports the configured results."""
    try:
        card = transport.wait_for_card(config.connect_timeout_s)
    finally:
        events.check()
    check_request_options(config.want, card)
    return card


def _warn_of_training(source_name: str, provenance: Mapping[str, Any], config: EdgeConfig, card: ModelCard) -> None:
    """Warns of models that were trained on synthetic drives if the source is not marked as one."""
    cards = [card] if config.local_model is None else [card, find_local_model(config, card).card()]
    trained = dict.fromkeys(each.name for each in cards if each.is_trained_on_synthetic_drives)
    if trained and not provenance.get("synthetic"):
        _LOG.warning(
            "network trained on synthetic drives only",
            model=", ".join(trained),
            source=source_name,
            hint="on real images its results mean little: `skylane model fetch` lists networks of real streets",
        )


def _open_sampler(folder: Path, config: EdgeConfig, others: Mapping[str, int]) -> ResourceSampler:
    nodes = {f"vehicle/{config.vehicle}": os.getpid(), **others}
    return ResourceSampler(folder / RESOURCES_NAME, nodes, containers=config.sample_containers)


def _close_killed_runs(folder: Path) -> None:
    """Completes the logs of earlier runs in the same parent folder that were killed."""
    for killed, aborted in repair_all(folder.parent).items():
        _LOG.warning("killed run closed", folder=str(killed.resolve()), frames_aborted=aborted)


def _with_sinks(config: EdgeConfig, card: ModelCard) -> EdgeConfig:
    """Returns the configuration with the default sinks of the model's task if it names none."""
    names = task_named(card.task).sinks if config.sinks is None else config.sinks
    check_sinks(names, card)
    return config.model_copy(update={"sinks": tuple(dict.fromkeys(names))})


def open_sinks(config: EdgeConfig, folder: Path, card: ModelCard) -> list[Sink]:
    """Opens the configured sinks."""
    with ExitStack() as opened:  # Closes the other sinks if one cannot be opened.
        sinks: list[Sink] = []
        for name in config.sinks or ():
            settings = {setting: getattr(config, setting) for setting in SINKS[name].settings}
            sinks.append(load("sink", SINKS, name)(folder, card, **settings))
            opened.callback(sinks[-1].close)
            if SINKS.is_external(name):
                in_order = getattr(sinks[-1], "in_order", None)
                is_bool = isinstance(in_order, bool)
                require(SINKS.describe(name), "in_order", in_order, "True or False", is_valid=is_bool)
        opened.pop_all()
    return sinks


@contextmanager
def _open_recorder(
    presentation: Presentation | None, config: EdgeConfig, folder: Path, card: ModelCard
) -> Iterator[OutputRecorder | None]:
    """Yields the recorder of a presenter's outputs; None without a presenter."""
    if presentation is None:
        yield None
        return
    with PresentedLog(folder) as log:
        outputs = folder / OUTPUTS_FOLDER
        try:
            if config.sinks:
                make_folder(outputs, folder)
        except OSError as error:
            raise LogError(unwritable_message(outputs, error, "--out")) from error
        yield OutputRecorder(presentation, log, open_sinks(config, outputs, card), config, card)


def _stop_on_signals(node: EdgeNode) -> None:
    """Makes the first Ctrl-C stop the run in order, and the second one abort it."""

    def stop(*_: object) -> None:
        node.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    on_termination_signals(stop)


def _expected_frames(config: EdgeConfig, frame_count: int | None) -> int | None:
    """Returns the number of frames of the run; None if it is unknown."""
    if config.loop or frame_count is None:
        return config.frames
    return min(frame_count, config.frames or frame_count)


NOTHING_ANSWERED = 3  # Exit code of a run without errors in which no frame got a result in time.

_SHOWN_DIGITS = 12  # Length of a model's hash in a line.


class RejectedError(SkylaneError):
    """The workers rejected every frame of a run."""


def retry_lines(counts: RunCounts) -> Iterator[str]:
    """Yields a line about retried frames, if there were any."""
    if counts.retried:
        duplicates = counts.ignored_answers.get("duplicate", 0)
        yield (
            f"{counts.retried} frames were sent again because no answer came: the second attempt answered "
            f"{counts.retry_won}; {duplicates} duplicate answers were ignored"
        )


def unused_lines(unused: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning for each worker address that got no frame. `unused`: the reason by address."""
    for address, reason in unused.items():
        yield f"WARNING: {address} got no frame: {reason}"


def _late_lines(late: int) -> Iterator[str]:
    """Yields a line about results that came too late for some files, if there were any."""
    if late:
        yield f"{late} results came too late for their place in videos and bags"


def answered_by_lines(counts: RunCounts, card: ModelCard) -> Iterator[str]:
    """Yields how many frames each worker answered in time, and a warning if not all used the model of `card`.

    Models are told apart by their hashes; versions of one hash are one model. Without hashes, versions count.
    """
    for origin, frames in sorted(counts.answered_by.items()):
        engine = origin.engine or "unknown engine"
        model = f"{card.name} {origin.model_version}, {engine}, {origin.sha256[:_SHOWN_DIGITS]}"
        yield f"{frames} frames answered by {origin.worker} ({model})"
    models = {origin.sha256 or origin.model_version for origin in counts.answered_by}
    if len(models) > 1:
        yield (
            f"WARNING: {len(models)} different models named {card.name} answered: the results and times of this run mix "
            "them; give --model-version to use one only"
        )
    elif models and models.isdisjoint({card.sha256, card.version}):
        yield (
            f"WARNING: {card.name} was announced as version {card.version} ({card.sha256[:_SHOWN_DIGITS]}), but "
            "another one answered"
        )


def print_report(
    folder: Path, console: Console, remarks: Sequence[str], outcomes: Mapping[Outcome, int]
) -> list[dict[str, str]]:
    """Prints the tables of a run, the remarks and the run's folder; returns the rows of the latency log."""
    try:
        rows = list(read_rows(folder))
        summaries = summarise(rows)
        vehicle_results = list(vehicle_result_tables(rows))
    except SkylaneError as error:
        console.print(str(error), markup=False)
        return []
    if summaries:
        console.print(stage_table(summaries))
    for table in vehicle_results:
        console.print(table)
    console.print(outcome_table(rows, outcomes))
    for line in remarks:
        console.print(line, markup=False, highlight=False)
    console.print(f"The run is in {folder.resolve()}", markup=False, highlight=False, soft_wrap=True)
    return rows


def common_faults(rows: Sequence[Mapping[str, str]], source_name: str, model: str) -> Iterator[SkylaneError]:
    """Yields the error that all frames of a run share, with its remedy, because the tables do not show it."""
    if rows and all(row["reason"].startswith("undecodable") for row in rows):
        yield SourceError(f"{source_name}: none of its {len(rows)} frames can be read: {rows[0]['reason']}")
    if rows and all(row["outcome"] == Outcome.REJECTED for row in rows):
        yield RejectedError(f"model {model}: all {len(rows)} frames were rejected: {rows[0]['reason']}")


def exit_code(
    rows: Sequence[Mapping[str, str]], faults: Sequence[SkylaneError], log_format: LogFormat | None = None
) -> int:
    """Reports faults on standard error, in the format of the log lines, and returns the exit code of the run."""
    code = 1 if faults else 0
    problems = [str(fault) for fault in faults]
    if not faults and not any(row["outcome"] in WITH_RESULT for row in rows):
        code = NOTHING_ANSWERED
        problem = f"none of the {len(rows)} frames got a result in time: {_shared_reason(rows)}" if rows else ""
        problems = [problem or "the run has no frames: its source has none, or it ended before the first"]
    for problem in problems:
        if log_format == LogFormat.JSON:
            _LOG.error("run failed", reason=problem)
        else:
            click.echo(f"skylane: {problem}", err=True)
    return code


def _shared_reason(rows: Sequence[Mapping[str, str]]) -> str:
    """Returns the first frame's reason if the others differ only in its details, else a pointer to the table."""
    kind, _, details = rows[0]["reason"].partition(":")
    is_shared = bool(details) and all(row["reason"].partition(":")[0] == kind for row in rows)
    return rows[0]["reason"] if is_shared else "see the table of outcomes"
