"""Writes the folder of a small synthetic study: two axes, two repetitions, and one cell that failed."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.logs.run_log import load_run
from tests.support.synthetic_run import SyntheticRunPlan, write_run

ENGINES, VEHICLES = ("frozen_graph", "saved_model"), (1, 4)
_SLOWER_MS = {("saved_model", 1): 15.0, ("frozen_graph", 4): 300.0}
FAILED = ("saved_model", 4)


def write_study(folder: Path, frames: int = 120) -> Path:
    """Writes manifest, runs and frames of a study; returns its folder."""
    runs, logs = [], []
    for order, (repetition, engine, vehicles) in enumerate(product((1, 2), ENGINES, VEHICLES)):
        cell = f"{engine}.{vehicles}-vehicles"
        facts = {"study": "tiny", "cell": cell, "repetition": repetition, "engine": engine, "vehicles": vehicles}
        row = {**facts, "order": order, "state": "done", "reason": None, "source_sha256": "23a7b80c" * 8}
        if (engine, vehicles) == FAILED:
            runs.append(row | {"state": "failed", "reason": "no model 'road-huge': skylane model build road-huge"})
            continue
        slower_ms = _SLOWER_MS.get((engine, vehicles), 0.0)
        plan = SyntheticRunPlan(frames=frames, seed=order, session=f"{order:012x}", slower_ms=slower_ms)
        log = load_run(write_run(folder / "cells" / cell / str(repetition) / "vehicle-1", plan)).frames
        phase = np.where(np.arange(len(log)) < 10, "warm_up", "measured")
        lead = pd.DataFrame({**facts, "vehicle_run": "vehicle-1", "phase": phase})
        logs.append(pd.concat([lead.drop(columns="engine"), log], axis=1))  # The log has a column of this name.
        runs.append(
            row
            | {"validity": "INVALID", "validity_reason": "ran 17 s with min_duration 600 s", "throughput_hz": 7.0 - order / 10}
            | {"total_p50_ms": float(log["total_ms"].median()), "worker_cpu_percent": 160.0, "worker_rss_mb": 900.0}
        )  # fmt: skip
    pd.DataFrame(runs).to_csv(folder / "runs.csv", index=False)
    pd.concat(logs, ignore_index=True).to_parquet(folder / "frames.parquet", index=False)
    steps = {
        "study": "tiny",
        "cell": "frozen_graph.1-vehicles",
        "repetition": 1,
        "vehicles": [1, 2],
        "p99_ms": [180.5, 420.0],
    }
    pd.DataFrame(steps | {"fits": [True, False], "reason": ["", "p99 is above 300 ms"]}).to_csv(
        folder / "capacity.csv", index=False
    )
    axes = {"engine": ENGINES, "vehicles": VEHICLES, "codec": ["jpeg"]}
    manifest = {
        "kind": "study",
        "name": "tiny",
        "description": "Two formats.",
        "seed": 7,
        "state": "complete",
        "axes": axes,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder
