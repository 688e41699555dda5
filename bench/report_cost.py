"""`skylane bench report`: time, memory and page size of the report of a long run, which is synthetic."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.logs.synthetic_run import SyntheticRunPlan, write_run
from bench import harness
from bench.harness import BenchRun
from ops.processes.child import BenchError
from shared.terminal_table import Table, result_table

TARGETS = {"seconds": 15.0, "peak_memory_mb": 1000.0, "page_mb": 15.0}  # Limits for a run of 100,000 rows.
_TARGET_ROWS = 100_000
_TITLES = {"seconds": "time, s", "peak_memory_mb": "peak memory, MB", "page_mb": "page, MB"}


@dataclass(frozen=True, slots=True)
class ReportCostPlan:
    """Settings of the benchmark."""

    rows: int = harness.number(_TARGET_ROWS, 10, 2_000_000, "Rows of the synthetic log.")
    rounds: int = harness.rounds(3, 100)


def measure(plan: ReportCostPlan, run: BenchRun) -> dict[str, Any]:
    """Measure `skylane report` for a run of many frames with a synthetic log."""
    run.step(f"writing {plan.rows} rows")
    folder = write_run(run.folder / "run", SyntheticRunPlan(frames=plan.rows))
    rounds = []
    for number in range(plan.rounds):
        run.step(f"round {number + 1} of {plan.rounds}")
        rounds.append(_report(folder))
    return {
        "rows": plan.rows,
        "rounds": rounds,
        "worst": {name: max(each[name] for each in rounds) for name in TARGETS},
        "targets": TARGETS if plan.rows == _TARGET_ROWS else None,
    }


def _report(run: Path) -> dict[str, float]:
    command = [sys.executable, "-P", "-m", "skylane", "report", str(run)]
    begin_s = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        # Only wait4 returns the peak memory of this one child.
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begin_s
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise BenchError(f"the report failed: {output.read().decode(errors='replace').strip()[-500:]}")
    return {
        "seconds": seconds,
        "peak_memory_mb": usage.ru_maxrss * 1024 / 1e6,
        "page_mb": (run / "report.html").stat().st_size / 1e6,
    }


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    rounds, targets = result["rounds"], result["targets"]
    values = {name: [each[name] for each in rounds] for name in _TITLES}
    yield result_table(
        f"The report of {result['rows']:,} rows, {len(rounds)} times",
        {"measure": "<", "least": ".1f", "most": ".1f", "target": ""},
        [
            (title, min(values[name]), max(values[name]), f"≤ {targets[name]:g}" if targets else "–")
            for name, title in _TITLES.items()
        ],
    )
    for name, limit in (targets or {}).items():  # One verdict on the worst round; none if the rounds spread too much.
        yield f"target of {_TITLES[name]} {harness.rounds_text(result['worst'][name] <= limit, limit, values[name])}"


report = harness.bench_command("report", ReportCostPlan, measure, _tables)
