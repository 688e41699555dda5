"""Recompute the main figures of a run's report from its latency.csv alone: python examples/recompute/recompute.py RUN."""

import sys
from pathlib import Path

import pandas as pd

PARTS = [
    "taken", "demosaiced", "preprocessed", "gated", "inferred_locally", "encoded", "sent", "crossing", "dequeued",
    "decoded", "batched", "inferred", "postprocessed", "mask_encoded", "replied", "mask_decoded", "uplink", "downlink",
    "cloud", "total",
]  # fmt: skip
OPTIONAL = ("gated", "inferred_locally")  # Empty without a difference detector or a local model.
WITH_RESULT = ["answered", "reused", "answered_locally"]

# Text and whole numbers as pandas' own types: a float of nanoseconds since 1970 is not exact, and `NA` may be a name.
texts = dict.fromkeys(["vehicle", "camera", "session", "model", "model_version", "worker", "worker_session"], "string")
empty = {"keep_default_na": False, "na_values": [""]}
log = pd.read_csv(Path(sys.argv[1]) / "latency.csv", dtype=texts, dtype_backend="numpy_nullable", **empty)
outcomes = log.outcome.value_counts()
answered = log[log.outcome == "answered"].rename(columns=lambda name: name.removesuffix("_ms"))
parts = [part for part in PARTS if part not in OPTIONAL or (part in answered and answered[part].notna().any())]
stages = answered[parts].quantile([0.5, 0.95, 0.99]).T
stages["share %"] = 100 * answered[parts].sum() / answered.total.sum()
statistics = answered[parts].describe(percentiles=[0.25, 0.5, 0.75, 0.95, 0.99, 0.999]).T
results = log[log.outcome.isin(WITH_RESULT)]
result_ns = results.t_due_ns + (results.total_ms * 1e6).round().astype("Int64")
throughput_hz = len(results) / (result_ns.max() - results.t_due_ns.min()) * 1e9
low, high = answered.total.quantile(0.45, "lower"), answered.total.quantile(0.55, "higher")
journey = answered[answered.total.between(low, high)][parts].fillna(0).mean()
slowest = answered.nlargest(12, "total")[["vehicle", "camera", "sequence", "total"]]

print(outcomes, stages, statistics, f"{throughput_hz:.3f} results a second", journey, slowest, sep="\n\n")
