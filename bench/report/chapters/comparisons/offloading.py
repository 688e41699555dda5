"""Whether offloading was worth it, and on which link that turns."""

from collections.abc import Sequence
from dataclasses import replace

from bench.logs.run_log import RunLog, load_run
from bench.offloading.break_even import Alternative, OffloadingError, Verdict, worth
from bench.report.chapters.run.stage_statistics import SEED
from bench.report.content import Caution, Chart, Part, Prose, Section, Table, Trace, numbers, texts
from bench.report.data.study_log import Cell, StudyLog
from bench.report.output.number_format import milliseconds, number
from bench.report.output.stage_styles import series
from shared.runlog.latency_log import LogError

_TITLE = "Is it worth offloading?"
_NO_LINK = "none"
_VEHICLE = "vehicle-1"
_DRAWN_MS = (0.0, 5.0, 20.0, 50.0, 100.0)  # Delays of the curves: more would hide each other.


def chapter(local: RunLog, remotes: Sequence[RunLog]) -> Section:
    """Remote runs, each against a local one of the same frames."""
    others = [remote for remote in remotes if remote.folder.resolve() != local.folder.resolve()]
    parts = [part for number, remote in enumerate(others, start=1) for part in _of_run(local, remote, number)]
    return Section("offloading", _TITLE, tuple(parts or [Prose("Not compared: no run but the local one was given.")]))


def of_study(study: StudyLog) -> Section | None:
    """Every cell behind a link against the one that is else the same and behind none; None where there are no such two.

    Without a link the worker is on the vehicle's own machine: what it answers there is the local answer.
    """
    rows, cautions = [], []
    for cell in study.cells:
        here = _else_without_link(study, cell)
        if here is None:
            continue
        try:
            local, remote = _whole(study, here), _whole(study, cell)
            verdict = worth(local, remote, seed=SEED)
        except (LogError, OffloadingError) as error:
            cautions.append(Caution(f"{cell.name}: cannot be told: {error}."))
            continue
        cautions += [Caution(f"{cell.name}: {caveat}") for caveat in verdict.caveats]
        stay = verdict.local
        inference_ms = float(local.frames["inferred_ms"].median())
        rows.append((
            cell.name, verdict.frames, stay.p50, verdict.remote_p50, stay.difference, stay.bandwidth_mbps, inference_ms,
            1 + stay.difference.value / inference_ms,
        ))  # fmt: skip
    if not rows and not cautions:
        return None
    columns = (
        *texts("offloaded"),
        *numbers(
            "frames", "local p50 ms", "offloaded p50 ms", "difference ms", "turns at Mbit/s", "inference p50 ms",
            "pays for a vehicle × slower",
        ),
    )  # fmt: skip
    caption = (
        "Each cell behind a link against the one that is else the same and has none, whose worker is on the vehicle's own "
        "machine. Turns: the bandwidth above which offloading is faster, – where none makes it so. Pays: for a vehicle "
        "whose own inference takes more than so many times the worker's, offloading over this link is faster."
    )
    about = Prose(
        "Both sides ran on one machine, so a link can only add to an answer's time. What is measured is therefore what "
        "the link adds, and from it how much slower than the worker a vehicle has to be for offloading to pay."
    )
    return Section("offloading", _TITLE, (about, *cautions, Table("offloading", caption, columns, tuple(rows))))


def _else_without_link(study: StudyLog, cell: Cell) -> Cell | None:
    """The cell that differs in its link alone, which is none; None where there is none, or the cell is that itself."""
    wanted = dict(cell.settings) | {"link": _NO_LINK}
    found = (other for other in study.cells if dict(other.settings) == wanted)
    return None if cell.settings.get("link", _NO_LINK) == _NO_LINK else next(found, None)


def _whole(study: StudyLog, cell: Cell) -> RunLog:
    """The measured frames of all runs of a cell's first vehicle as one log, with what its first run's manifest tells.

    Raises:
        LogError: it cannot be read, or there is none.
    """
    frames = study.measured
    if len(frames):
        frames = frames[(frames["cell"] == cell.key) & (frames["vehicle_run"] == _VEHICLE)]
    if frames.empty:
        raise LogError(f"no run of {cell.key} left frames that were measured")
    first = study.folder / "cells" / cell.key / str(frames["repetition"].min()) / _VEHICLE
    return replace(
        load_run(first), name=cell.name, frames=frames.sort_values(["repetition", "t_due_ns"], kind="stable")
    )


def _of_run(local: RunLog, remote: RunLog, number_of_run: int) -> tuple[Part, ...]:
    try:
        verdict = worth(local, remote, seed=SEED)
    except OffloadingError as error:
        return (Caution(f"{remote.name}: cannot be told: {error}."),)
    stays = (verdict.local, verdict.in_process)
    name = f"offloading_{number_of_run}"
    parts: list[Part] = [
        Prose(f"{remote.name} against {local.name}. {verdict.sentence}"),
        Prose(verdict.in_process.sentence),
    ]
    parts += [Caution(caveat) for caveat in verdict.caveats]
    return (*parts, _table(verdict, stays, name), _chart(verdict, stays, f"{name}_curve"), Prose(_assumed(verdict)))


def _table(verdict: Verdict, stays: tuple[Alternative, ...], name: str) -> Table:
    rows = tuple(
        (
            stay.name, verdict.frames, stay.p50, verdict.remote_p50, stay.difference, 100 * stay.share_faster,
            stay.bandwidth_mbps, stay.delay_ms,
        )
        for stay in stays
    )  # fmt: skip
    columns = (
        *texts("staying"),
        *numbers(
            "frames", "staying p50 ms", "offloaded p50 ms", "difference ms", "faster offloaded %",
            "turns at Mbit/s", "turns at ms each way",
        ),
    )  # fmt: skip
    caption = (
        f"{verdict.remote_name} against {verdict.local_name}, over the frames that both answered. Offloading is faster above "
        "the bandwidth, and below the delay, at which it turns; – where it never does."
    )
    return Table(name, caption, columns, rows)


def _chart(verdict: Verdict, stays: tuple[Alternative, ...], name: str) -> Chart:
    curve = verdict.curve
    chosen = [place for place, delay in enumerate(curve.delays_ms) if delay in _DRAWN_MS]
    traces: list[Trace] = []
    for place, row in enumerate(chosen):
        colour, dash = series(place)
        traces.append({
            "type": "scatter", "mode": "lines+markers", "name": f"{curve.delays_ms[row]:g} ms each way",
            "x": list(curve.bandwidths_mbps), "y": list(curve.p50_ms[row]),
            "line": {"color": colour, "dash": dash, "width": 2}, "marker": {"size": 5},
            "hovertemplate": "%{x:g} Mbit/s: %{y:.1f} ms<extra></extra>",
        })  # fmt: skip
    ends = [curve.bandwidths_mbps[0], curve.bandwidths_mbps[-1]]
    for stay, dash in zip(stays, ("solid", "dot"), strict=True):
        traces.append({
            "type": "scatter", "mode": "lines", "name": stay.name, "x": ends, "y": [stay.p50.value] * 2,
            "line": {"color": "#24292f", "width": 3, "dash": dash}, "hovertemplate": "%{y:.1f} ms<extra></extra>",
        })  # fmt: skip
    layout = {
        "xaxis": {"type": "log", "title": {"text": "bandwidth, Mbit/s (logarithmic)"}},
        "yaxis": {"type": "log", "dtick": "D2", "title": {"text": "median total, ms (logarithmic)"}},
        "showlegend": True,
    }
    caption = (
        "The median that offloaded frames would take over other links, by bandwidth and delay, against staying on the "
        f"vehicle ({milliseconds(stays[0].p50.value)}; in its own process {milliseconds(stays[1].p50.value)}). Under a black "
        "line, offloading is faster."
    )
    return Chart(name, caption, tuple(traces), layout, height=420)


def _assumed(verdict: Verdict) -> str:
    width = verdict.link_bandwidth_mbps
    told = "no limit to its bandwidth showed" if width is None else f"{number(width)} Mbit/s"
    return (
        f"The remote run's own link, as its frames tell it: {milliseconds(verdict.link_delay_ms)} each way, {told}; the model "
        f"behind the curves gives it {milliseconds(verdict.modelled_p50_ms)}, measured were "
        f"{milliseconds(verdict.remote_p50.value)}. The model assumes that frames do not queue for the link, that nothing is "
        "lost and sent again, and that the link changes nothing else."
    )
