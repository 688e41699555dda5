"""Compares offloading with inference on the vehicle and estimates the link at which the faster side changes."""

from collections.abc import Sequence
from dataclasses import replace

from analysis.logs.run_log import RunLog, load_run
from analysis.offloading import Alternative, OffloadingError, Verdict, worth
from analysis.report.chapters.run.distribution import SEED
from analysis.report.chapters.traces import axis, line
from analysis.report.content import Caution, Chapter, ChapterPart, Chart, Paragraph, ReportTable, Trace
from analysis.report.data.report_input import ReportedCell, StudyLog
from analysis.report.output.number_format import milliseconds, number
from analysis.report.stage_styles import series_style
from shared.runlog.latency_log import LogError

_TITLE = "Is offloading worth it?"
_NO_LINK = "none"
_VEHICLE = "vehicle-1"
_DRAWN_DELAYS_MS = (0.0, 5.0, 20.0, 50.0, 100.0)  # More curves would hide each other.


def chapter(local: RunLog, remotes: Sequence[RunLog]) -> Chapter:
    """Compares offloaded runs with a local run of the same frames."""
    others = [remote for remote in remotes if remote.folder.resolve() != local.folder.resolve()]
    parts = [part for index, remote in enumerate(others, start=1) for part in _run_parts(local, remote, index)]
    nothing = Paragraph("Not compared: only the local run was given.")
    return Chapter("offloading", _TITLE, tuple(parts or [nothing]))


def study_chapter(study: StudyLog) -> Chapter | None:
    """Compares every cell with a link with the cell that has the same settings and no link; None without such a pair.

    Without a link the worker runs on the same machine as the vehicle, so these cells serve as local runs.
    """
    rows, cautions = [], []
    for cell in study.cells:
        local_cell = _cell_without_link(study, cell)
        if local_cell is None:
            continue
        try:
            local, remote = _cell_log(study, local_cell), _cell_log(study, cell)
            result = worth(local, remote, seed=SEED)
        except (LogError, OffloadingError) as error:
            cautions.append(Caution(f"{cell.name}: not comparable: {error}."))
            continue
        cautions += [Caution(f"{cell.name}: {caveat}") for caveat in result.caveats]
        stay = result.local
        inference_ms = float(local.frames["inferred_ms"].median())
        rows.append((
            cell.name, result.frames, stay.p50, result.remote_p50, stay.difference, stay.bandwidth_mbps, inference_ms,
            1 + stay.difference.value / inference_ms,
        ))  # fmt: skip
    if not rows and not cautions:
        return None
    headings = (
        "offloaded", "frames", "local p50 ms", "offloaded p50 ms", "difference ms", "break-even Mbit/s",
        "inference p50 ms", "break-even slowdown ×",
    )  # fmt: skip
    caption = (
        "Each cell with a link compared with the same cell without a link, whose worker runs on the vehicle's machine. "
        "Break-even Mbit/s: offloading is faster above this bandwidth, – if it is never faster. Break-even slowdown: "
        "offloading over this link is faster if inference on the vehicle takes more than this multiple of the worker's "
        "inference time."
    )
    introduction = Paragraph(
        "Vehicle and worker ran on the same machine, so the link only adds latency: the table shows how much, and how much "
        "slower than the worker a vehicle must be for offloading to be faster."
    )
    table = ReportTable("offloading", caption, headings, rows)
    return Chapter("offloading", _TITLE, (introduction, *cautions, table))


def _cell_without_link(study: StudyLog, cell: ReportedCell) -> ReportedCell | None:
    """Returns the cell with the same settings and no link; None if `cell` itself has no link."""
    wanted = dict(cell.plan) | {"link": _NO_LINK}
    found = (other for other in study.cells if dict(other.plan) == wanted)
    return None if cell.settings.get("link", _NO_LINK) == _NO_LINK else next(found, None)


def _cell_log(study: StudyLog, cell: ReportedCell) -> RunLog:
    """Returns the measured frames of the first vehicle in all runs of a cell, with the manifest of its first run.

    Raises:
        LogError: The log cannot be read, or no frame was measured.
    """
    frames = study.measured
    if len(frames):
        frames = frames[(frames["cell"] == cell.key) & (frames["vehicle_run"] == _VEHICLE)]
    if frames.empty:
        raise LogError(f"no run of {cell.key} has measured frames")
    first = study.folder / "cells" / cell.key / str(frames["repetition"].min()) / _VEHICLE
    return replace(
        load_run(first), name=cell.name, frames=frames.sort_values(["repetition", "t_due_ns"], kind="stable")
    )


def _run_parts(local: RunLog, remote: RunLog, index: int) -> tuple[ChapterPart, ...]:
    try:
        result = worth(local, remote, seed=SEED)
    except OffloadingError as error:
        return (Caution(f"{remote.name}: not comparable: {error}."),)
    stays = (result.local, result.in_process)
    name = f"offloading_{index}"
    return (
        Paragraph(f"{remote.name} compared with {local.name}. {result.sentence}"),
        Paragraph(result.in_process.sentence),
        *(Caution(caveat) for caveat in result.caveats),
        _table(result, stays, name),
        _chart(result, stays, f"{name}_curve"),
        Paragraph(_assumptions(result)),
    )


def _table(result: Verdict, stays: tuple[Alternative, ...], name: str) -> ReportTable:
    rows = tuple(
        (
            stay.name, result.frames, stay.p50, result.remote_p50, stay.difference, 100 * stay.share_faster,
            stay.bandwidth_mbps, stay.delay_ms,
        )
        for stay in stays
    )  # fmt: skip
    headings = (
        "local alternative", "frames", "local p50 ms", "offloaded p50 ms", "difference ms", "faster offloaded %",
        "break-even Mbit/s", "break-even ms each way",
    )  # fmt: skip
    caption = (
        f"{result.remote_name} compared with {result.local_name}, over the frames answered in both runs. Offloading is "
        "faster above the break-even bandwidth and below the break-even delay; – if it is never faster."
    )
    return ReportTable(name, caption, headings, rows)


def _chart(result: Verdict, stays: tuple[Alternative, ...], name: str) -> Chart:
    curve = result.curve
    drawn = [index for index, delay in enumerate(curve.delays_ms) if delay in _DRAWN_DELAYS_MS]
    traces: list[Trace] = []
    for index, row in enumerate(drawn):
        colour, dash = series_style(index)
        trace = line(
            f"{curve.delays_ms[row]:g} ms each way",
            list(curve.bandwidths_mbps),
            list(curve.p50_ms[row]),
            {"color": colour, "dash": dash, "width": 2},
            "%{x:g} Mbit/s: %{y:.1f} ms",
            marker={"size": 5},
        )
        traces.append(trace | {"mode": "lines+markers"})
    ends = [curve.bandwidths_mbps[0], curve.bandwidths_mbps[-1]]
    for stay, dash in zip(stays, ("solid", "dot"), strict=True):
        style = {"color": "#24292f", "width": 3, "dash": dash}
        traces.append(line(stay.name, ends, [stay.p50.value] * 2, style, "%{y:.1f} ms"))
    layout = {
        "xaxis": axis("bandwidth, Mbit/s (logarithmic)", type="log"),
        "yaxis": axis("median total, ms (logarithmic)", type="log", dtick="D2"),
    }
    caption = (
        "Estimated median total of offloaded frames by bandwidth and delay of the link. Offloading is faster where a curve "
        f"is below a black line: inference on the vehicle ({milliseconds(stays[0].p50.value)}), or in its own process."
    )
    return Chart(name, caption, tuple(traces), layout, height=420)


def _assumptions(result: Verdict) -> str:
    width = result.link_bandwidth_mbps
    bandwidth = "no measurable bandwidth limit" if width is None else f"a bandwidth of {number(width)} Mbit/s"
    return (
        f"The link of the offloaded run had, estimated from its frames, a delay of {milliseconds(result.link_delay_ms)} "
        f"each way and {bandwidth}. For this link, the model behind the curves gives a median of "
        f"{milliseconds(result.modelled_p50_ms)}; measured were {milliseconds(result.remote_p50.value)}. The model assumes "
        "that frames do not wait for the link, that nothing is retransmitted, and that the link changes nothing else."
    )
