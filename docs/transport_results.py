"""Reduces the study of the transports to the files of docs/results/data; `make results` runs it after the study."""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.report.data.report_input import StudyLog, load_study
from shared.runlog.latency_table import PARTS


def overheads(study: StudyLog, codec: str) -> dict[str, Any]:
    """Returns the overhead of each transport in ms, and the medians of its parts, for frames of a codec."""
    transports = {}
    for cell in study.cells:
        if cell.plan["codec"] == codec:
            frames = study.answered[study.answered["cell"] == cell.key]
            overhead_ms = frames["total_ms"] - frames["inferred_ms"]
            transports[str(cell.plan["transport"])] = {
                "n": len(frames),
                "overhead_ms": {"median": float(overhead_ms.median()), "p95": float(overhead_ms.quantile(0.95))},
                "parts": {str(part): _median(frames[f"{part}_ms"]) for part in PARTS},
            }
    return {"transports": transports}


def _median(values: "pd.Series[float]") -> float:
    return float(values.astype("float64").fillna(0.0).median())


if __name__ == "__main__":
    log, folder = load_study(Path(sys.argv[1])), Path(sys.argv[2])
    for name in ("jpeg", "raw"):
        (folder / f"transports-{name}.json").write_text(json.dumps(overheads(log, name), indent=1), encoding="utf-8")
