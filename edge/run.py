"""Runs a source as configured: opens all parts, plays, writes the manifest and prints the summary."""

import os
import signal
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from edge import run_record
from edge.config import EdgeConfig
from edge.node import EdgeNode, RunSettings
from edge.presenting.opening import open_presentation
from edge.progress import run_with_progress
from edge.reuse.opening import open_reuse
from edge.reuse.reporting import reuse_lines
from edge.run_summary import common_faults, exit_code, origin_lines, print_report, retry_lines, unused_lines
from edge.sinks.feed import check_sinks
from edge.sinks.sink import Sink
from edge.sinks.table import SINKS
from edge.sources.opening import is_live, open_source
from edge.transport_events import TransportEvents
from edge.transports.opening import open_transport
from edge.transports.transport import Transport
from shared.errors import SkylaneError
from shared.logs import get_logger
from shared.messages.model_card import ModelCard
from shared.messages.request_options import check_request_options
from shared.registry import load
from shared.resources.sampler import RESOURCES_NAME, ResourceSampler
from shared.runlog.latency_log import CSV_NAME, LogError, LogWriter
from shared.runlog.repair import repair_all
from shared.runlog.run_folder import contents, discard_unless_started, run_folder
from shared.runlog.run_manifest import reserve_space, write_manifest
from shared.runtime.processes import on_termination_signals
from shared.tasks.task import task_named

_LOG = get_logger("edge")


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
    session = uuid.uuid4().hex[:12]
    config = config.seeded()
    folder = config.out or run_folder(config.vehicle)
    with ExitStack() as stack:
        source = open_source(
            source_name,
            topics=config.topics,
            start_offset_s=config.start_offset_s,
            duration_s=config.playback_duration_s,
        )
        stack.callback(source.close)
        events = TransportEvents()
        transport = stack.enter_context(closing(open_transport(config, session, events=events)))
        card = _wait_for_card(transport, config, events)
        config = _with_sinks(config, card)
        reuse = stack.enter_context(open_reuse(config, card))
        presentation = stack.enter_context(open_presentation(config, card))
        _close_killed_runs(folder)
        before = contents(folder)
        log = stack.enter_context(LogWriter(folder))
        begin = stack.enter_context(discard_unless_started(folder, before))
        nodes = {f"vehicle/{config.vehicle}": os.getpid(), **sampled_processes}
        sampler = stack.enter_context(
            ResourceSampler(folder / RESOURCES_NAME, nodes, containers=config.sample_containers)
        )
        manifest = run_record.started(config, session, source.provenance, card, reuse)
        write_manifest(folder, manifest)
        reserve_space(folder)
        settings = RunSettings(config, session, card, is_live(source_name), reuse, presentation)
        node = EdgeNode(source, transport, log, open_sinks(config, folder, card), settings, events=events)
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
        _stop_on_signals(node)
        faults: list[SkylaneError] = []
        try:
            run_with_progress(node, _expected_frames(config, source.frame_count), Console(stderr=True))
        except SkylaneError as error:
            faults.append(error)
        faults += node.faults
        if node.results_too_late:
            console.print(f"{node.results_too_late} results came too late for their place in videos and bags")
        counts = node.counts()
        _LOG.info("run ended", read=counts.read, **{outcome.value: n for outcome, n in counts.outcomes.items()})
        manifest["source"] = source.provenance  # It may be more complete after reading.
        manifest["sampling"] = sampler.account()
        try:
            write_manifest(folder, run_record.ended(manifest, counts, log.rows_lost, reuse))
        except LogError as error:
            faults.append(error)
        remarks = [
            *retry_lines(counts),
            *origin_lines(counts, card),
            *unused_lines(transport.unused()),
            *reuse_lines(reuse, counts, is_open_loop=settings.is_live or not config.closed_loop),
        ]
        if log.rows_lost:
            faults.append(LogError(f"{log.rows_lost} rows of {folder / CSV_NAME} were not written: {log.fault}"))
    for line in sampler.report_lines():
        console.print(line, markup=False, highlight=False)
    rows = print_report(folder, console, remarks)
    faults += common_faults(rows, source_name, config.model)
    return exit_code(rows, faults, config.log_format)


def _wait_for_card(transport: Transport, config: EdgeConfig, events: TransportEvents) -> ModelCard:
    """Returns the card of the model after checking that it supports the configured results."""
    try:
        card = transport.wait_for_card(config.connect_timeout_s)
    finally:
        events.check()
    check_request_options(config.want, card)
    return card


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
        opened.pop_all()
    return sinks


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
