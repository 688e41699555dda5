"""The common parts of benchmarks: a plan whose fields are options of its command, rounds that alternate, tables and JSON output.

A benchmark is a module with a plan (a dataclass), a function `measure` and its tables; `bench_command` makes its command.
`compare` runs named candidates in alternating rounds of one run, so that drift of the machine affects all of them alike.
"""

import inspect
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import MISSING, asdict, dataclass, field, fields
from json import dumps
from pathlib import Path
from typing import Any, TypeVar

import click
import psutil
from rich.console import Console, RenderableType

from analysis.statistics.samples import spread
from cloud.models.engine_benchmark import turns
from rosbag_tools.drive.recording import sample_bag
from shared.errors import SkylaneError
from shared.files import check_writable, write_file
from shared.flags import FiniteRange, WholeRange
from shared.imaging.image_codecs import IMAGE_CODECS
from shared.models.repository import default_root
from shared.quiet import progress_console
from shared.runlog.latency_table import PARTS
from shared.runlog.mean_interval import MIN_RUNS
from shared.runtime.machine import machine
from shared.stages import Stage

TOTAL, OVERHEAD = "total", "overhead"  # The overhead is the total time of a frame without its inference.
EXISTING_PATH = click.Path(exists=True, path_type=Path)
_OPTION, _DRIVE = "option", "drive"
_LIBRARIES = ("python", "tensorflow", "numpy", "paho-mqtt")

Samples = Mapping[str, Sequence[float]]  # Samples of one candidate in one round, by measure.
OnStep = Callable[[str], None]  # Receives a description of the next step.
K = TypeVar("K")


class BenchRun(ExitStack):
    """A block for which a benchmark runs; `enter_context` adds what ends with it."""

    def __init__(self, on_step: OnStep = lambda _: None) -> None:
        """`on_step` displays the progress."""
        super().__init__()
        self.step = on_step
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="skylane-bench-")))  # Empty.


def bench_command(
    name: str,
    plan: type[Any],
    measure: Callable[[Any, BenchRun], dict[str, Any]],
    tables: Callable[[Mapping[str, Any]], Iterable[RenderableType]],
) -> click.Command:
    """Returns the command of a benchmark, with an option for every field of its plan that is an `option`.

    `measure` returns the JSON output without the machine, and its docstring is the command's help; `tables` yields what is
    printed. The exit code is 1 if the output has `failures`.
    """
    json = click.Option(
        ["--json", "path"],
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the result to this file as JSON.",
    )
    drives = {each.name: each.metadata[_DRIVE] for each in fields(plan) if _DRIVE in each.metadata}

    def run(*, path: Path | None = None, **settings: Any) -> None:
        if path is not None:
            check_writable(path, "--json")
        for bag_name, drive_frames in drives.items():
            settings[bag_name] = settings[bag_name] or sample_bag(drive_frames or settings["frames"])
        with progress_console().status("preparing") as status, BenchRun(status.update) as bench_run:
            result = {**measure(plan(**settings), bench_run), "machine": machine()}
        if path is not None:
            write_file(path, dumps(result, indent=2))
        show(result, tables(result))
        if result.get("failures"):
            sys.exit(1)

    return click.Command(name, callback=run, params=[*_parameters(plan), json], help=inspect.getdoc(measure))


def plan_record(plan: Any) -> dict[str, Any]:
    """Converts a plan for JSON output; paths become strings."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(each) for each in value]
        return str(value) if isinstance(value, Path) else value

    return {key: plain(value) for key, value in asdict(plan).items()}


def option(default: Any = None, **keywords: Any) -> Any:
    """A field that is an option; a callable `default` is called for every plan.

    `keywords`: those of click.Option, and `flag` for another name than the field's.
    """
    return field(**{"default_factory" if callable(default) else "default": default}, metadata={_OPTION: keywords})


def number(default: float, least: float, most: float | None, text: str, **keywords: Any) -> Any:
    """A number in a range; an integer if `default` is one."""
    is_integer = isinstance(default, int)
    kind = WholeRange(int(least), None if most is None else int(most)) if is_integer else FiniteRange(least, most)
    return option(default, type=kind, show_default=True, help=text, **keywords)


def rounds(default: int, most: int = 1000) -> Any:
    """The number of rounds."""
    return number(default, 1, most, "Number of rounds.")


def frames(default: int, least: int = 4, text: str = "Frames per round.") -> Any:
    """The number of frames."""
    return number(default, least, 10_000, text)


def bag(drive_frames: int | None = None) -> Any:
    """A bag; by default a synthetic drive of `drive_frames`, or of the plan's `frames`."""
    keywords = {"type": EXISTING_PATH, "help": "Bag with the frames to send. [a synthetic drive]"}
    return field(default=None, metadata={_OPTION: keywords, _DRIVE: drive_frames})


def models() -> Any:
    """The model repository."""
    return option(default_root, type=click.Path(file_okay=False, path_type=Path), help="Model repository.")


def model() -> Any:
    """The name of a model."""
    return option("road-small", show_default=True, help="Name of the model.")


def engine() -> Any:
    """The engine; None: as the model's manifest says."""
    return option(help="Inference engine. [as the model's manifest says]")


def codec() -> Any:
    """The codec of the frames."""
    return option("jpeg", type=click.Choice([*IMAGE_CODECS]), show_default=True, help="Image codec.")


def choices(known: Iterable[str], default: tuple[str, ...], text: str, flag: str, **keywords: Any) -> Any:
    """Some of the known names; the option is repeatable."""
    return option(default, flag=flag, multiple=True, type=click.Choice([*known]), help=text, **keywords)


def throughput_window() -> Any:
    """The frames in flight while throughput is measured."""
    return number(4, 1, 64, "Unanswered frames while throughput is measured.")


@dataclass(frozen=True, slots=True)
class Ratio:
    """One measure of a candidate divided by that of another."""

    value: float  # Over the samples of all rounds.
    by_round: tuple[float, ...]

    @property
    def median_of_rounds(self) -> float:
        """The median of the ratios by round."""
        return statistics.median(self.by_round)

    def record(self) -> dict[str, Any]:
        """The ratio as JSON output contains it."""
        return {"ratio": self.value, "by_round": list(self.by_round)}


class Comparison:
    """Samples by candidate, measure and round."""

    def __init__(self, names: Collection[str]) -> None:
        self.failed: dict[str, str] = {}  # Reasons by candidate.
        self._rounds: dict[str, dict[str, list[Sequence[float]]]] = {name: {} for name in names}

    @property
    def names(self) -> list[str]:
        """The candidates that have not failed."""
        return [name for name in self._rounds if name not in self.failed]

    @property
    def measured(self) -> list[str]:
        """The candidates that completed a round."""
        return [name for name, measures in self._rounds.items() if measures]

    def add(self, name: str, samples: Samples) -> None:
        """Adds the samples of one round."""
        for measure, values in samples.items():
            self._rounds[name].setdefault(measure, []).append(values)

    def samples(self, name: str, measure: str) -> list[float]:
        """Returns the samples of all rounds."""
        return [value for values in self._rounds[name][measure] for value in values]

    def by_round(
        self, name: str, measure: str, statistic: Callable[[Sequence[float]], float] = statistics.median
    ) -> tuple[float, ...]:
        """Returns a statistic of each round."""
        return tuple(statistic(values) for values in self._rounds[name][measure])

    def spread(self, name: str, measure: str) -> dict[str, Any]:
        """Returns percentiles of the samples of all rounds, see `analysis.statistics.samples.spread`."""
        return spread(self.samples(name, measure))

    def median(self, name: str, measure: str) -> float:
        """Returns the median of the samples of all rounds."""
        return statistics.median(self.samples(name, measure))

    def medians(self, name: str) -> dict[str, float]:
        """Returns the median of every measure."""
        return {measure: self.median(name, measure) for measure in self._rounds[name]}

    def ratio(
        self, name: str, reference: str, measure: str, statistic: Callable[[Sequence[float]], float] = statistics.median
    ) -> Ratio:
        """Divides a statistic of a candidate's measure by that of the reference, overall and round by round."""
        # A candidate that failed has fewer rounds.
        rounds = zip(
            self.by_round(name, measure, statistic), self.by_round(reference, measure, statistic), strict=False
        )
        overall = statistic(self.samples(name, measure)) / statistic(self.samples(reference, measure))
        return Ratio(overall, tuple(own / other for own, other in rounds))


def compare(
    candidates: Mapping[str, Callable[[int], Samples]],
    rounds: int,
    on_step: OnStep,
    *,
    step: str = "",
    may_fail: Collection[str] = (),
) -> Comparison:
    """Runs each candidate once in every round; a candidate receives the number of the round, from 0.

    `step` precedes the description of each turn. A candidate of `may_fail` whose turn raises a SkylaneError is left out
    of the following rounds and listed in `Comparison.failed`.

    Raises:
        SkylaneError: the turn of another candidate failed.
    """
    comparison = Comparison(candidates)
    for number, name in alternating(list(candidates), rounds):
        if name in comparison.failed:
            continue
        on_step(f"{step}round {number + 1} of {rounds}: {name}")
        try:
            comparison.add(name, candidates[name](number))
        except SkylaneError as error:
            if name not in may_fail:
                raise
            comparison.failed[name] = f"from round {number + 1} on: {error}"
    return comparison


def alternating(candidates: Sequence[K], rounds: int) -> Iterator[tuple[int, K]]:
    """Yields the number of the round and a candidate, in an order that changes each round; see `turns`."""
    for number in range(rounds):
        for candidate in turns(candidates, number):
            yield number, candidate


def row_samples(rows: Iterable[Mapping[str, str]]) -> Samples:
    """Converts one round's rows of a latency log to samples: durations by part, bytes up and down, and the overhead."""
    columns = {str(part): f"{part}_ms" for part in (*PARTS, TOTAL)} | {
        "bytes_up": "bytes_up",
        "bytes_down": "bytes_down",
    }
    return frame_samples([{name: float(row[column]) for name, column in columns.items()} for row in rows])


def frame_samples(frames: Sequence[Mapping[str, float]]) -> Samples:
    """Converts one round's frames, each with its durations by stage in milliseconds, to samples; adds the overhead."""
    samples: dict[str, list[float]] = {OVERHEAD: [frame[TOTAL] - frame[Stage.INFERRED] for frame in frames]}
    for frame in frames:
        for name, value in frame.items():
            samples.setdefault(name, []).append(value)
    return samples


def overhead_record(comparison: Comparison, name: str) -> dict[str, Any]:
    """Summarises samples of `frame_samples` for JSON output: spread of the overhead, medians by round and by stage."""
    return {
        "n": len(comparison.samples(name, OVERHEAD)),
        "overhead_ms": comparison.spread(name, OVERHEAD),
        "by_round_ms": list(comparison.by_round(name, OVERHEAD)),
        "parts": {measure: value for measure, value in comparison.medians(name).items() if measure != OVERHEAD},
    }


def processor_s(pids: Iterable[int]) -> float:
    """Returns the user and system time so far of the processes that still run, over all cores."""
    total_s = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            used = psutil.Process(pid).cpu_times()
            total_s += used.user + used.system
    return total_s


def show(result: Mapping[str, Any], parts: Iterable[RenderableType]) -> None:
    """Prints the tables and lines of a result, the machine and the engine."""
    console = Console()
    for part in parts:
        console.print(part, highlight=False, markup=False)
    console.print(machine_line(result["machine"], result.get("broker")), highlight=False)
    if "engine" in result:
        console.print(result["engine"], highlight=False)


def machine_line(machine: Mapping[str, Any], broker: str | None = None) -> str:
    """Processor, broker and versions of a result; `machine`: as returned by `shared.runtime.machine`."""
    versions = ", ".join(f"{name} {machine[name]}" for name in _LIBRARIES)
    parts = (f"{machine['processor']}, {machine['cores']} cores", broker, versions)
    return "; ".join(part for part in parts if part)


def span(values: Sequence[float], digits: int = 3) -> str:
    """The smallest and the largest value, such as "0.912 to 1.034"."""
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


NOT_DECIDED = "not decided"


def rounds_text(is_met: bool, target: float, by_round: Sequence[float]) -> str:  # noqa: FBT001 (its name says it)
    """The verdict of several rounds on a target; none for few rounds, or if they spread by more than their distance from it."""
    if len(by_round) < MIN_RUNS:
        return f"{NOT_DECIDED}: fewer than {MIN_RUNS} rounds"
    if max(by_round) - min(by_round) > abs(statistics.median(by_round) - target):
        return f"{NOT_DECIDED}: the spread is larger than the distance from the target"
    return verdict_text(is_met)


def interval_verdict(
    low: float | None, high: float | None, *, least: float = -math.inf, most: float = math.inf
) -> bool | None:
    """Whether an estimate is within limits, if its whole interval says so; otherwise, and without an interval, None."""
    if low is None or high is None or math.isnan(low):
        return None
    if least <= low and high <= most:
        return True
    return False if high < least or low > most else None


def verdict_text(is_met: bool | None) -> str:  # noqa: FBT001 (as above)
    """The verdict on a target; None if the measurement does not decide it."""
    return NOT_DECIDED if is_met is None else "met" if is_met else "NOT met"


def target_line(name: str, by_round: Sequence[float], target: float) -> str:
    """A line that compares the median of all rounds with the least value wanted."""
    value = statistics.median(by_round)
    return f"{name}: {value:.3f} (median of rounds; target {target}, {rounds_text(value >= target, target, by_round)})"


def _parameters(plan: type[Any]) -> list[click.Parameter]:
    """Returns the options of a plan's fields."""
    params: list[click.Parameter] = []
    for each in fields(plan):
        if _OPTION in each.metadata:
            keywords = {"flag": f"--{each.name.replace('_', '-')}", **each.metadata[_OPTION]}
            flag = keywords.pop("flag")
            default = each.default if each.default_factory is MISSING else each.default_factory
            params.append(click.Option([flag, each.name], default=default, **keywords))
    return params
