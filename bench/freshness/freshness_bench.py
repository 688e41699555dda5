"""`python -m bench freshness`: how right the outputs of each presenter are at and for every tick, over ages of results and links.

Every drive is recorded once with the results of both models. All presenters then see the same ticks and results, in the order
of a run but without waiting, so that seeds decide everything. For the measure at the tick, each output of a presenter or of
the local model is ready before the next tick, as on a vehicle that keeps up with its camera.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from analysis.statistics.description import IntervalEstimate
from analysis.statistics.streaming_accuracy import accuracy_interval, margin_interval, recovered_interval
from bench import harness
from bench.freshness.live import LivePlan, measure_live
from bench.freshness.real_drive import TRUTH, RealDrive, RealDrivePlan, replay_real_drive
from bench.freshness.recording import RecordedDrivePlan, record_drive
from bench.freshness.replay import (
    AGES_MS,
    CEILING,
    FAST_RATE_HZ,
    LINKS,
    LOCAL,
    NS_PER_MS,
    OUTAGE,
    OUTAGE_LINK,
    OUTAGE_S,
    RATE_HZ,
    DriveReplay,
    Scores,
    age_case,
    outage_frames,
    replay_drive,
    strict,
)
from bench.harness import BenchRun, interval_verdict, plan_record, verdict_text
from edge.presenting.fusion_table import fusion_for, shipped_fusion
from edge.presenting.presenter import PRESENTERS
from edge.reuse.opening import check_local_model
from modelling.evaluation.bag_images import check_given_once
from modelling.evaluation.streaming import StreamingScores
from ops.link.arrivals import RoundTrip
from ops.processes.child import BenchError
from shared.files import file_sha256
from shared.flags import WholeRange
from shared.models.repository import Repository
from shared.runlog.presented_log import HOLD, OutputOrigin
from shared.runtime.machine import commit, usable_cores
from shared.terminal_table import Table, result_table

WARP, FUSE = "warp", "fuse"
LEAST_AT_200_MS: Final = {WARP: 0.58, FUSE: 0.66}  # Streaming mean IoU of a camera of 10 Hz.
LEAST_RECOVERED: Final = {WARP: 0.50, FUSE: 0.75}  # Share of the distance between hold and the ceiling, at 200 ms.
# Dedelayed (arXiv 2510.13714): mean IoU over local only and over remote only, on BDD100K at 100 ms.
DEDELAYED: Final = {LOCAL: 0.064, HOLD: 0.098}

_JUDGED_AGE_MS = 200
_LEAST_FRAMES = max(AGES_MS) * FAST_RATE_HZ // 1000 + FAST_RATE_HZ // RATE_HZ
_LIVE_DRIVES = 3
_FRAMES = 61  # Of a synthetic drive.
_LOCAL_MODEL = "road-tiny"
_BASELINES: Final = (LOCAL, HOLD, "warp")  # The candidates that margins are computed over.
_CLASSES_AT_MS: Final = 200
_MEASURES: Final = (
    "At the tick: the newest output that was ready when the tick was due; that of a presenter or of the local model is ready "
    "before the next tick. For the tick: the output made for it. ceiling: the remote model without a delay."
)
_DEDELAYED_AT_MS: Final = 100


@dataclass(frozen=True, slots=True)
class FreshnessPlan:
    """Settings of the benchmark."""

    drives: int = harness.number(20, 1, 1000, "Number of unseen drives, in five weathers.")
    frames: int | None = harness.option(
        type=WholeRange(_LEAST_FRAMES, 10_000),
        help=f"Frames of each drive. [{_FRAMES} at {FAST_RATE_HZ} Hz; with --drive, all]",
    )
    real_drives: tuple[Path, ...] = harness.option(
        (), flag="--drive", multiple=True, type=harness.EXISTING_PATH, metavar="BAG",
        help="Bag with true labels, in place of the synthetic drives (repeatable).",
    )  # fmt: skip
    map_file: Path | None = harness.option(
        flag="--map", type=harness.EXISTING_PATH, metavar="FILE",
        help="With --drive: lines `network class: truth class`. [equal names, or a shipped map]",
    )  # fmt: skip
    outage_drives: int = harness.number(5, 0, 1000, "Number of drives with an outage.")
    inference_ms: float = harness.number(80.0, 0.0, 60_000.0, "Time of an inference behind a link.")
    presenters: tuple[str, ...] = harness.choices(
        PRESENTERS, (*PRESENTERS,), "Presenter to compare with hold (repeatable). [all]", "--presenter"
    )
    models: Path = harness.models()
    model: str = harness.option(
        "road-small",
        flag="--remote",
        show_default=True,
        help=f"Name of the remote model; with --drive also `{TRUTH}`: its results are the true labels.",
    )
    local_model: str | None = harness.option(
        flag="--local", help="Name of the vehicle's own model. [road-tiny; with --drive, none]"
    )
    local_side: int | None = harness.option(
        type=WholeRange(8, 8192),
        help="With --drive: the local model sees as much detail as N×N pixels have, as a smaller one would.",
        metavar="N",
    )
    fusion: Path | None = harness.option(
        type=harness.EXISTING_PATH, help="Fusion file. [the shipped one of the two models]"
    )
    live: bool = harness.option(
        default=False, is_flag=True, help=f"Also play {_LIVE_DRIVES} drives live, and compare each with its replay."
    )
    processes: int = harness.option(
        usable_cores, type=WholeRange(1, 256), help="Drives that are replayed at a time. [one per core]"
    )


def measure(plan: FreshnessPlan, run: BenchRun) -> dict[str, Any]:
    """Compare presenters on recorded drives, at the tick and for the tick, by the age of results, link and class.

    For the tick: the output made for it. At the tick: the newest output that was ready then; the JSON has it in `at_tick`.
    The synthetic drives are recorded into runs/freshness, about 110 MB each. Seeds decide the result: a second run gives the
    same. Drives of --drive are compared by age and class.
    """
    if plan.real_drives:
        return _measure_real(plan, run)
    if plan.model == TRUTH or plan.map_file or plan.local_side:
        raise BenchError(f"--remote {TRUTH}, --map and --local-side are for drives of your own: give them with --drive")
    plan = replace(plan, local_model=plan.local_model or _LOCAL_MODEL, frames=plan.frames or _FRAMES)
    fusion = _checked(plan)
    jobs = [
        *(_job(plan, fusion, number, with_outage=True) for number in range(plan.outage_drives)),
        *(_job(plan, fusion, number, with_outage=False) for number in range(plan.drives)),
    ]
    found = _replayed(jobs, plan.processes, run)
    cases = merged(found[plan.outage_drives :])
    if plan.outage_drives:
        cases |= merged(found[: plan.outage_drives])
    summary = summarise(cases)
    if plan.live:
        summary["live"] = _live(plan, fusion, run)
    return {
        **summary,
        "targets": check_targets(summary),
        "drives": [{"seed": job.plan.seed, "weather": job.plan.weather} for job in jobs[plan.outage_drives :]],
        "outage_drives": plan.outage_drives,
        "plan": plan_record(plan),
        "models": {name: Repository(plan.models).find(name).card().sha256 for name in _models(plan)},
        "fusion": None if fusion is None else {"file": fusion.name, "sha256": file_sha256(fusion)},
        "commit": commit(),
    }


def _measure_real(plan: FreshnessPlan, run: BenchRun) -> dict[str, Any]:
    """Compares presenters on the drives of bags."""
    if plan.live:
        raise BenchError("--live plays the synthetic drives only: leave it out, or leave out --drive")
    if plan.model == TRUTH and plan.map_file is not None:
        raise BenchError(f"--remote {TRUTH} has the classes of the truth: leave --map out")
    check_given_once(plan.real_drives)
    names = [name for name in PRESENTERS if name == HOLD or name in plan.presenters]
    fusion = None
    if plan.local_model is None:
        is_fuse_wanted = FUSE in plan.presenters and set(plan.presenters) != set(PRESENTERS)
        if plan.local_side is not None or is_fuse_wanted:
            raise BenchError("the presenter fuse and --local-side need a local model: give one with --local")
        names = [name for name in names if name != FUSE]
    elif plan.model == TRUTH:
        raise BenchError(f"--local compares two models: give the other one with --remote instead of {TRUTH}")
    else:
        fusion = _checked(plan)
    drives: list[RealDrive] = []
    found = []
    for bag in plan.real_drives:
        job = RealDrivePlan(bag, plan.models, plan.model, plan.local_model, plan.local_side, plan.map_file, plan.frames)
        _show(run, f"running the models on {bag}")
        drive, cases = replay_real_drive(job, names, fusion, run.step)
        if drives and (drive.ages, drive.classes) != (drives[0].ages, drives[0].classes):
            raise BenchError(
                f"{bag} has another frame rate or other classes than {drives[0].plan.bag}: compare them one by one"
            )
        drives.append(drive)
        found.append(cases)
    first = drives[0]
    joined = merged(found)
    return {
        "ages": [{"age_ms": round(age_ms), **_both(joined, str(age))} for age, age_ms in first.ages.items()],
        "real_drives": [
            {
                "bag": drive.plan.bag.name,
                "frames": len(drive.images),
                "labelled": sum(mask is not None for mask in drive.truths),
                "unreadable": drive.unreadable,
                "rate_hz": round(1e9 / drive.period_ns, 3),
                "model_input": f"{first.card.width}×{first.card.height}",
            }
            for drive in drives
        ],
        "classes": first.classes.describe(),
        "plan": plan_record(plan),
        "models": {name: Repository(plan.models).find(name).card().sha256 for name in _models(plan)},
        "fusion": None if fusion is None else {"file": fusion.name, "sha256": file_sha256(fusion)},
        "commit": commit(),
    }


def _models(plan: FreshnessPlan) -> list[str]:
    return [name for name in (plan.model, plan.local_model) if name is not None and name != TRUTH]


def _checked(plan: FreshnessPlan) -> Path | None:
    """Returns the fusion file, if a presenter needs one.

    Raises:
        SkylaneError: the models cannot be compared, or there is no fusion file for them.
    """
    repository = Repository(plan.models)
    stored = repository.find(plan.model)
    if stored.manifest.task != "segmentation":
        raise BenchError(
            f"model {plan.model} is for {stored.manifest.task}, and the bench compares masks: give a segmentation with "
            "--remote"
        )
    assert plan.local_model is not None
    local = repository.find(plan.local_model)
    check_local_model(local, stored.card())
    if FUSE not in plan.presenters:
        return None
    fusion_for(plan.fusion, stored.card(), local.card())
    return plan.fusion or shipped_fusion(plan.model, plan.local_model)


def _live(plan: FreshnessPlan, fusion: Path | None, run: BenchRun) -> list[dict[str, Any]]:
    """Returns the streaming accuracy of each presenter in live runs, beside that of the replay of the same ticks."""
    jobs = [_job(plan, fusion, number, with_outage=True) for number in range(_LIVE_DRIVES)]
    drives = [record_drive(job.plan) for job in jobs]
    found = []
    for name in jobs[0].presenters:
        _show(run, f"{name}: {len(drives)} drives live")
        found.append(measure_live(drives, LivePlan(name, fusion), run.folder, run.step))
    return found


def _job(plan: FreshnessPlan, fusion: Path | None, number: int, *, with_outage: bool) -> DriveReplay:
    rate_hz, frames = (RATE_HZ, outage_frames()) if with_outage else (FAST_RATE_HZ, plan.frames or _FRAMES)
    assert plan.local_model is not None
    recorded = RecordedDrivePlan(number, rate_hz, frames, plan.models, plan.model, plan.local_model)
    presenters = tuple(name for name in PRESENTERS if name == HOLD or name in plan.presenters)
    return DriveReplay(recorded, presenters, fusion, RoundTrip(plan.inference_ms), with_outage)


def _replayed(jobs: Sequence[DriveReplay], processes: int, run: BenchRun) -> list[dict[str, Scores]]:
    """Returns the scores of each drive, by case and candidate."""
    _show(run, f"recording and replaying {len(jobs)} drives")
    found = []
    # A forked process would inherit locks held by TensorFlow's threads.
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=get_context("spawn")) as pool:
        for number, scores in enumerate(pool.map(replay_drive, jobs), 1):
            found.append(scores)
            _show(run, f"recorded and replayed {number} of {len(jobs)} drives")
    return found


def _show(run: BenchRun, step: str) -> None:
    """Displays a step, also in the log of a run without a terminal, because it takes minutes."""
    run.step(step)
    if not sys.stderr.isatty():
        click.echo(step, err=True)


def merged(drives: Sequence[Mapping[str, Scores]]) -> dict[str, Scores]:
    """Joins the ticks of all drives, by case and candidate."""
    return {
        case: {
            name: StreamingScores(first.names, [tick for drive in drives for tick in drive[case][name].ticks])
            for name, first in candidates.items()
        }
        for case, candidates in drives[0].items()
        if all(case in drive for drive in drives)
    }


def summarise(cases: Mapping[str, Scores]) -> dict[str, Any]:
    """Returns the JSON of all cases; `cases` without the outage has no chapter of it."""
    found = {
        "ages": [{"age_ms": age_ms, **_both(cases, age_case(age_ms))} for age_ms in AGES_MS],
        "links": [{"link": link, **_both(cases, link)} for link in LINKS],
    }
    if OUTAGE not in cases:
        return found
    outage, at_tick = _outage(cases[OUTAGE]), _outage(cases[strict(OUTAGE)])
    return found | {"outage": outage | {"at_tick": {key: at_tick[key] for key in ("seconds", "within")}}}


def _both(cases: Mapping[str, Scores], name: str) -> dict[str, Any]:
    """Returns the JSON of a case scored for the tick, with that of the same at the tick, if it could be scored."""
    at_tick = cases.get(strict(name))
    return _case(cases[name]) | {"at_tick": None if at_tick is None else _case(at_tick)}


def _case(scores: Scores) -> dict[str, Any]:
    return {
        "ticks": len(scores[CEILING].ticks),
        "age_of_result_ms": _ages(scores[HOLD]),
        "candidates": {name: _candidate(each) for name, each in scores.items()},
        "margins": {
            name: {
                baseline: estimate_record(margin_interval(each, scores[baseline], with_missing=True))
                for baseline in _BASELINES
                if baseline in scores and baseline != name
            }
            for name, each in scores.items()
        },
        "recovered": {
            name: estimate_record(recovered_interval(each, scores[HOLD], scores[CEILING]))
            for name, each in scores.items()
            if name not in (HOLD, CEILING)
        },
    }


def _candidate(scores: StreamingScores) -> dict[str, Any]:
    """Describes a candidate; ticks without an output count as wrong."""
    return {
        "mean_iou": estimate_record(accuracy_interval(scores, with_missing=True)),
        "iou_by_class": {name: round(iou, 4) for name, iou in scores.by_class().items()},
        "origins": scores.origins(),
        "by_drive": {drive: _number(each.accuracy(with_missing=True)) for drive, each in scores.by_drive().items()},
    }


def _ages(held: StreamingScores) -> dict[str, float | None]:
    """Returns the age of the newest result at the ticks that have one."""
    ages_ms = [tick.age_ns / NS_PER_MS for tick in held.ticks if tick.age_ns is not None]
    return {key: float(np.percentile(ages_ms, share)) if ages_ms else None for key, share in (("p50", 50), ("p95", 95))}


def _outage(scores: Scores) -> dict[str, Any]:
    """Describes the whole outage, and every second of the drive."""
    last = outage_frames() // RATE_HZ
    first = (outage_frames() - len(next(iter(scores[HOLD].by_drive().values())).ticks)) // RATE_HZ
    seconds = {second: _between(scores, second, second + 1) for second in range(first, last)}
    return {
        "link": OUTAGE_LINK,
        "begin_s": OUTAGE_S[0],
        "end_s": OUTAGE_S[1],
        "seconds": [
            {
                "from_s": second,
                "mean_iou": {name: _number(each.accuracy(with_missing=True)) for name, each in parts.items()},
                "origins": {name: each.origins() for name, each in parts.items()},
            }
            for second, parts in seconds.items()
        ],
        "within": {name: _candidate(each) for name, each in _between(scores, *OUTAGE_S).items()},
    }


def _between(scores: Scores, begin_s: int, end_s: int) -> Scores:
    """Returns the ticks of each drive from `begin_s` to `end_s`; scored ticks end with the drive."""

    def part(each: StreamingScores) -> StreamingScores:
        ticks = []
        for drive in each.by_drive().values():
            first = outage_frames() - len(drive.ticks)
            ticks += drive.ticks[max(0, begin_s * RATE_HZ - first) : end_s * RATE_HZ - first]
        return StreamingScores(each.names, ticks)

    return {name: part(each) for name, each in scores.items()}


def estimate_record(estimate: IntervalEstimate) -> dict[str, float | None]:
    """Returns an estimate for JSON; None for what is not defined."""
    return {key: _number(value) for key, value in asdict(estimate).items()}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 5)


def check_targets(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns each target with the value reached; `summary` as in the JSON of the bench.

    `is_met` is None if the interval contains the target; a margin over the better of two must hold for both.
    """
    ages, outage = summary["ages"], summary.get("outage")
    judged = next(case for case in ages if case["age_ms"] == _JUDGED_AGE_MS)
    found = []
    for name in (WARP, FUSE):
        if name in judged["candidates"]:
            at = f"{name} at {_JUDGED_AGE_MS} ms, for the tick"
            found.append(_target(f"{at}: mean IoU", LEAST_AT_200_MS[name], **judged["candidates"][name]["mean_iou"]))
            found.append(_target(f"{at}: share of hold to ceiling", LEAST_RECOVERED[name], **judged["recovered"][name]))
    for case in ages:
        candidates = case["candidates"]
        if FUSE in candidates and WARP in candidates:
            better = max((LOCAL, WARP), key=lambda name: candidates[name]["mean_iou"]["value"])
            name = f"fuse − {better} at {case['age_ms']} ms, for the tick"
            target = _target(name, 0.0, **case["margins"][FUSE][better])
            verdicts = [_target("", 0.0, **case["margins"][FUSE][each])["is_met"] for each in (LOCAL, WARP)]
            found.append(target | {"is_met": False if False in verdicts else None if None in verdicts else True})
    if outage is not None and FUSE in outage["within"]:
        origins = outage["within"][FUSE]["origins"]
        share = 1 - origins.get(OutputOrigin.NONE, 0) / sum(origins.values())
        counted = _target("fuse without a link: share of ticks with an output", 1.0, value=share)
        found.append(counted | {"is_met": share >= 1.0})  # A count has no interval.
    return found


def _target(
    name: str, least: float, *, value: float, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    return {
        "name": name,
        "least": least,
        "value": value,
        "low": low,
        "high": high,
        "is_met": interval_verdict(low, high, least=least),
    }


def tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    """Yields the tables and lines of a result."""
    if "real_drives" in result:
        yield from _real_tables(result)
        return
    drives = len(result["drives"])
    ages, links = result["ages"], result["links"]
    yield from _accuracy_tables(
        f"by the age of results, {drives} drives", [(f"{case['age_ms']} ms", case) for case in ages]
    )
    yield f"95 % intervals over the drives. {_MEASURES} 33 ms: a camera of 30 Hz; the others: 10 Hz."
    yield from _accuracy_tables(
        f"over links, {result['plan']['inference_ms']:g} ms an inference",
        [(f"{case['link']}\n{_span(case['age_of_result_ms'])}", case) for case in links],
    )
    yield "Below a link: median and 95th percentile of the age of the newest result, ms."
    yield _class_table(next(case for case in ages if case["age_ms"] == _CLASSES_AT_MS))
    if "outage" in result:
        yield _outage_table(result["outage"], result["outage_drives"])
        yield "Second 0: start of the drive. A tick without an output counts as wrong. local: of the ticks of the last column."
    if FUSE in ages[0]["candidates"]:
        yield from _margin_lines(ages)
    yield from map(_live_line, result.get("live", ()))
    for target in result["targets"]:
        interval = "" if target["low"] is None else f" ({target['low']:.3f} to {target['high']:.3f})"
        judged = f"target ≥ {target['least']:g}: {verdict_text(target['is_met'])}"
        yield f"{target['name']}: {target['value']:.3f}{interval}, {judged}"


def _real_tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    ages = result["ages"]
    yield from _accuracy_tables(
        f"by the age of results, {result['plan']['model']} as the remote model",
        [(f"{case['age_ms']} ms", case) for case in ages],
    )
    for drive in result["real_drives"]:
        yield (
            f"{drive['bag']}: {drive['frames']} frames at {drive['rate_hz']:g} Hz, {drive['labelled']} with labels, "
            f"{drive['unreadable']} unreadable; model input {drive['model_input']}"
        )
    yield f"95 % intervals over the drives, or over blocks of ticks of a single one. {_MEASURES}"
    if result["classes"]:
        yield result["classes"]
    yield _class_table(min(ages, key=lambda case: abs(case["age_ms"] - _CLASSES_AT_MS)))
    if FUSE in ages[0]["candidates"]:
        for case in ages:
            margins = case["margins"][FUSE]
            text = ", ".join(f"{_points(margins[name])} over {name}" for name in (LOCAL, WARP) if name in margins)
            yield f"fuse at {case['age_ms']} ms, points for the tick: {text}"


def _accuracy_tables(title: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Table]:
    """Yields a table of each measure."""
    names = list(rows[0][1]["candidates"])
    at_tick = [(label, case["at_tick"]) for label, case in rows if case["at_tick"] is not None]
    for measure, cases in (("at the tick", at_tick), ("for the tick", rows)):
        yield result_table(
            f"Streaming mean IoU {measure} {title}",
            {"results": "<", "ticks": "", **dict.fromkeys(names, "")},
            [
                (label, str(case["ticks"]), *(_estimate(case["candidates"][name]["mean_iou"]) for name in names))
                for label, case in cases
            ],
        )


def _class_table(case: Mapping[str, Any]) -> Table:
    candidates = case["candidates"]
    classes = sorted(candidates[CEILING]["iou_by_class"])
    return result_table(
        f"IoU for the tick by class, results {case['age_ms']} ms old",
        {"class": "<", **dict.fromkeys(candidates, ".3f")},
        [(name, *(each["iou_by_class"].get(name) for each in candidates.values())) for name in classes],
    )


def _outage_table(outage: Mapping[str, Any], drives: int) -> Table:
    names = list(outage["within"])
    rows = []
    for second in outage["seconds"]:
        origins = second["origins"][names[-1]]
        rows.append(
            (
                str(second["from_s"]),
                "cut" if outage["begin_s"] <= second["from_s"] < outage["end_s"] else "",
                *(second["mean_iou"][name] for name in names),
                f"{100 * origins.get('local', 0) / sum(origins.values()):.0f} %",
            )
        )
    columns = {"s": "", "link": "<", **dict.fromkeys(names, ".3f"), "local": ""}
    return result_table(f"Streaming mean IoU for the tick through an outage, {drives} drives", columns, rows)


def _margin_lines(ages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for case in ages:
        margins = case["margins"][FUSE]
        text = ", ".join(f"{_points(margins[name])} over {name}" for name in (LOCAL, HOLD))
        beside = "; Dedelayed on BDD100K: " + ", ".join(
            f"{100 * points:+.1f} over {name}"
            for name, points in (("local only", DEDELAYED[LOCAL]), ("remote only", DEDELAYED[HOLD]))
        )
        yield f"fuse at {case['age_ms']} ms, points for the tick: {text}{beside if case['age_ms'] == _DEDELAYED_AT_MS else ''}"


def _live_line(live: Mapping[str, Any]) -> str:
    after = live["after_due_ms"]
    return (
        f"{live['presenter']} live, {live['drives']} drives, {live['ticks']} ticks: for the tick {live['live']:.3f}; replayed with "
        f"the same results: {_estimate(live['replayed'], ' ')}: {'confirmed' if live['is_confirmed'] else 'NOT confirmed'}; ready "
        f"{after['median']:.0f} ms after due (p50; p95 {after['p95']:.0f} ms); at the tick {live['live_at_tick']:.3f}"
    )


def _points(estimate: Mapping[str, float | None]) -> str:
    value, low, high = (None if each is None else 100 * each for each in estimate.values())
    return f"{value:+.1f}" if low is None else f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def _estimate(estimate: Mapping[str, float | None], separator: str = "\n") -> str:
    value, low, high = estimate.values()
    if value is None:
        return "–"
    ends = [f"{end:.2f}".lstrip("0") for end in (low, high) if end is not None]
    return separator.join([f"{value:.3f}", *(["–".join(ends)] if ends else [])])


def _span(ages_ms: Mapping[str, float | None]) -> str:
    return " / ".join("–" if each is None else f"{each:.0f}" for each in ages_ms.values())


freshness = harness.bench_command("freshness", FreshnessPlan, measure, tables)
