"""promtool checks the rules and evaluates every alert: with the fault, and without."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.promtool import RULES, program

DAY_S = 86_400
WORKER = 'job="skylane-worker", instance="w:8000"'
CAR = 'job="skylane-vehicle", instance="car:9464"'
MODEL = f'{WORKER}, model="road-small", version="1"'


def latencies(name: str, labels: str, fast: int, slow: int) -> dict[str, str]:
    """Returns a histogram that grows each minute by values of at most 0.1 s, and by others of 0.5 to 1 s."""
    growth = {"0.1": fast, "0.5": fast, "1": fast + slow, "+Inf": fast + slow}
    return {f'{name}_bucket{{{labels}, le="{bound}"}}': f"0+{step}x30" for bound, step in growth.items()}


def inference(slow_worker: int) -> dict[str, str]:
    """Returns the inference times of three workers, one of which may be slow."""
    name, slow = "skylane_worker_stage_seconds", {"w2:8000": slow_worker}
    series: dict[str, str] = {}
    for instance in ("w0:8000", "w1:8000", "w2:8000"):
        labels = f'job="skylane-worker", instance="{instance}", model="m", version="1", stage="inferred"'
        series |= latencies(name, labels, 600 - slow.get(instance, 0), slow.get(instance, 0))
    return series


def refused(outcome: str, step: int, answered: int | None) -> dict[str, str]:
    """Returns counters of a worker that refuses `step` frames a minute."""
    series = {f'skylane_frames_refused_total{{{WORKER}, outcome="{outcome}", reason="other"}}': f"0+{step}x30"}
    return series if answered is None else series | {f"nv_inference_request_success{{{MODEL}}}": f"0+{answered}x30"}


def outcomes(dropped: int) -> dict[str, str]:
    """Returns the outcomes of a vehicle with 600 frames a minute."""
    steps = {("answered", ""): 500 - dropped, ("reused", ""): 100, ("dropped", "window"): dropped}
    return {
        f'skylane_vehicle_frames_total{{{CAR}, outcome="{outcome}", reason="{reason}"}}': f"0+{step}x30"
        for (outcome, reason), step in steps.items()
    }


def until(metric: str, labels: str, days: float) -> dict[str, str]:
    """Returns the time of an expiry, counted from the start."""
    return {f"{metric}{{{labels}}}": f"{days * DAY_S:.0f}x30"}


def two_workers(slow: int) -> dict[str, str]:
    """Returns the inference times of two workers, one of which may be slow."""
    return {name: values for name, values in inference(slow).items() if "w1:8000" not in name}


def waiting(frames: str, answered: str) -> dict[str, str]:
    """Returns the queue of a worker, and the frames that it has answered."""
    return {f"skylane_frames_waiting{{{WORKER}}}": frames, f"nv_inference_request_success{{{MODEL}}}": answered}


def ended(car: str, other: str) -> dict[str, str]:
    """Returns the frames of two vehicles that have ended."""
    series = 'skylane_vehicle_frames_total{{{}, outcome="answered", reason=""}}'
    return {series.format(CAR): car, series.format(CAR.replace("car:", "car-2:")): other}


QUEUE, FRAMES = "skylane_worker_queue_seconds", "skylane_vehicle_frame_seconds"
CERTIFICATE, LIST = "skylane_certificate_expiry_timestamp_seconds", "skylane_revocation_list_expiry_timestamp_seconds"
SERVER = 'job="skylane-broker", instance="b:9465", certificate="server"'
Series = Mapping[str, str]
CASES: list[
    tuple[str, Series, Series]
] = [  # The alert, series for which it fires after 20 minutes, and those without it.
    ("SkylaneTargetDown", {f"up{{{WORKER}}}": "0x30"}, {f"up{{{WORKER}}}": "1x30", 'up{job="other"}': "0x30"}),
    (
        "SkylaneBrokerLost",
        {f"skylane_broker_connected{{{CAR}}}": "0x30"},
        {f"skylane_broker_connected{{{CAR}}}": "1x19 1x10"},
    ),
    ("SkylaneWorkerQueueLong", latencies(QUEUE, MODEL, 500, 100), latencies(QUEUE, MODEL, 590, 10)),
    ("SkylaneWorkerSlow", inference(300), inference(0)),
    ("SkylaneWorkerSlow", two_workers(300), two_workers(0)),
    ("SkylaneWorkerStuck", waiting("0x5 64x25", "0+600x5 3000x25"), waiting("64x30", "0+600x30")),
    ("SkylaneWorkerStuck", waiting("0x5 1+9x25", "3000x30"), waiting("0x30", "3000x30")),
    ("SkylaneVehicleSilent", ended("0+600x5 3000x25", "0+600x30"), ended("0+600x30", "0+1x30")),
    ("SkylaneWorkerRefusing", refused("overloaded", 60, 540), refused("overloaded", 6, 594)),
    ("SkylaneWorkerRefusing", refused("rejected", 600, None), {f"nv_inference_request_success{{{MODEL}}}": "0+600x30"}),
    ("SkylaneWorkerFailing", refused("failed", 1, 599), refused("expired", 1, 599)),
    (
        "SkylaneWorkerFailing",
        {f'skylane_request_errors_total{{{WORKER}, stage="decoding"}}': "0+1x30"},
        {f'skylane_request_errors_total{{{WORKER}, stage="decoding"}}': "7x30"},
    ),
    ("SkylaneVehicleWithoutResults", outcomes(90), outcomes(30)),
    (
        "SkylaneVehicleLate",
        latencies(FRAMES, f'{CAR}, outcome="answered"', 500, 100),
        latencies(FRAMES, f'{CAR}, outcome="answered"', 590, 10),
    ),
    (
        "SkylaneClockUncertain",
        {f"skylane_vehicle_clock_error_seconds{{{CAR}}}": "0.08x30"},
        {f"skylane_vehicle_clock_error_seconds{{{CAR}}}": "0.001x30"},
    ),
    ("SkylaneCertificateExpires", until(CERTIFICATE, SERVER, 13), until(CERTIFICATE, SERVER, 90)),
    ("SkylaneCertificateExpires", until(CERTIFICATE, SERVER, -1), until(CERTIFICATE, SERVER, 15)),
    ("SkylaneRevocationListExpires", until(LIST, WORKER, 6), until(LIST, WORKER, 8)),
]


def groups() -> list[dict[str, Any]]:
    """Returns the rules."""
    content = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule for group in content["groups"] for rule in group["rules"]]


def evaluate(tmp_path: Path, series: Series, alert: str, *, fires: bool) -> str:
    """Evaluates the rules over some series; returns what is wrong, if an alert does not (or does) fire after 20 minutes."""
    rule = next(each for each in groups() if each.get("alert") == alert)
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    count = f'count(ALERTS{{alertname="{alert}", alertstate="firing", severity="{rule["labels"]["severity"]}"}})'
    samples = [{"labels": "{}", "value": 1}] if fires else []
    cases = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "1m",
                "input_series": inputs,
                "promql_expr_test": [{"expr": count, "eval_time": "20m", "exp_samples": samples}],
            }
        ],
    }
    file = tmp_path / "cases.yml"
    file.write_text(yaml.safe_dump(cases))
    ended = subprocess.run(
        [program("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    """Prometheus would not start."""
    for command in (["check", "rules", str(RULES)], ["check", "config", str(RULES.with_name("prometheus.yml"))]):
        ended = subprocess.run([program("promtool"), *command], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(("alert", "faulty", "healthy"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_an_alert_fires_for_its_fault_only(alert: str, faulty: Series, healthy: Series, tmp_path: Path) -> None:
    """An alert that never fires is worse than none, and one that always does is switched off."""
    assert evaluate(tmp_path, faulty, alert, fires=True) == ""
    assert evaluate(tmp_path, healthy, alert, fires=False) == ""


def test_every_alert_has_a_case_and_a_row_in_the_guide() -> None:
    """An operator who is woken looks it up."""
    alerts = {rule["alert"] for rule in groups() if "alert" in rule}
    assert alerts == {alert for alert, _, _ in CASES}
    guide = (RULES.parents[2] / "docs" / "guides" / "metrics.md").read_text(encoding="utf-8")
    for alert in alerts:
        assert f"| `{alert}` |" in guide
