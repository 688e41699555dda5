"""Debian's Prometheus scrapes a real worker, a real vehicle and a real broker, with the shipped rules."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import httpx
import numpy as np
import pytest
import yaml

from ops.broker.broker import Broker
from ops.broker.certificate_authority import CertificateAuthority, Role
from ops.processes.vehicle_process import VehicleProcess
from ops.processes.worker_process import Worker
from shared.frame_reasons import LABELS
from shared.runlog.latency_log import Outcome, read_rows
from tests.monitoring.promtool import ROOT, RULES, WAIT_S, program, prometheus, query, samples, wait_for
from tests.monitoring.test_rules import groups
from tests.support.mqtt_bus import free_port

pytestmark = pytest.mark.mosquitto
FRAMES = 20
DASHBOARD = json.loads((ROOT / "configs" / "grafana" / "dashboards" / "skylane.json").read_text(encoding="utf-8"))
PROMETHEUS_OWN = {"ALERTS", "up"}
WORDS = {  # Words of PromQL in our expressions that are no metrics.
    *("and", "increase", "min_over_time", "unless"),
    *("alertname", "alertstate", "by", "count", "group_left", "histogram_quantile", "instance", "job", "le", "min"),
    *(
        "model",
        "node",
        "on",
        "or",
        "outcome",
        "quantile",
        "rate",
        "reason",
        "stage",
        "sum",
        "time",
        "vector",
        "version",
    ),
}


@dataclass(frozen=True, slots=True)
class Fleet:
    """A Prometheus that scrapes a worker and a vehicle, and the numbers of the worker after a first run."""

    prometheus: httpx.Client
    rows: list[dict[str, str]]  # Of the first run.
    worker_samples: dict[str, float]  # After it, before the second one.

    def get(self, path: str) -> Any:
        """Calls Prometheus."""
        return self.prometheus.get(path).raise_for_status().json()["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Evaluates an expression now; returns the labels and the value of each series."""
        return [(each["metric"], float(each["value"][1])) for each in query(self.prometheus, expression)]

    def until(self, expression: str, holds: Callable[[list[float]], bool] = bool) -> list[float]:
        """Evaluates an expression until its values meet a condition, by default that there are some."""
        values: list[float] = []

        def evaluate() -> bool:
            values[:] = [value for _, value in self.query(expression)]
            return holds(values)

        wait_for(evaluate)
        return values


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Runs everything. The worker has its engine in a process of its own, and certificates."""
    folder = tmp_path_factory.mktemp("fleet")
    program("prometheus")  # Skips without it.
    pictures = folder / "pictures"
    pictures.mkdir()
    for index in range(FRAMES):
        pixels = np.random.default_rng(index).integers(0, 256, (120, 160, 3), np.uint8)
        cv2.imwrite(str(pictures / f"{index:04d}.png"), pixels)
    certificates = folder / "certificates"
    authority = CertificateAuthority(certificates)
    authority.broker(["127.0.0.1"], 90)
    authority.node(Role.WORKER, "worker", 90)
    authority.node(Role.VEHICLE, "car", 90)
    authority.node(Role.VEHICLE, "first", 90)
    authority.renew_crl(90)
    ports = {"skylane-worker": free_port(), "skylane-vehicle": free_port()}
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for job, port in ports.items()
        ],
    }
    worker_flags = [f"--http=127.0.0.1:{ports['skylane-worker']}", "--isolate", f"--certs={certificates}"]
    with Broker.start(secured=certificates) as broker:
        vehicle_flags = [f"--broker={broker.url}", f"--certs={certificates}", "--no-sinks"]
        with Worker(broker.url, models=ROOT / "models", model="road-small", flags=worker_flags):
            with VehicleProcess(pictures, folder / "first", [*vehicle_flags, "--closed-loop"]) as first:
                assert first.wait(WAIT_S) == 0
            after = samples(f"http://127.0.0.1:{ports['skylane-worker']}/metrics")
            flags = [
                *vehicle_flags,
                "--loop",
                "--arrivals=uniform",
                "--arrival-rate=3",
                f"--metrics=127.0.0.1:{ports['skylane-vehicle']}",
            ]
            with prometheus(folder, settings) as client, VehicleProcess(pictures, folder / "car", flags):
                yield Fleet(client, list(read_rows(folder / "first")), after)


def test_a_worker_counts_every_frame_once_in_each_histogram(fleet: Fleet) -> None:
    """Its engine runs in another process, which must change nothing. The stages add up to the whole."""
    assert [row["outcome"] for row in fleet.rows] == ["answered"] * FRAMES
    found, model = fleet.worker_samples, 'model="road-small"'
    version = fleet.rows[0]["model_version"]
    labels = f'{model},version="{version}"'
    for name in ("skylane_worker_frame_seconds", "skylane_worker_queue_seconds"):
        assert found[f"{name}_count{{{labels}}}"] == found[f'{name}_bucket{{le="+Inf",{labels}}}'] == FRAMES
    stages = {
        stage: found[f'skylane_worker_stage_seconds_sum{{{model},stage="{stage}",version="{version}"}}']
        for stage in ("dequeued", "decoded", "batched", "inferred", "postprocessed", "mask_encoded", "replied")
    }
    assert sum(stages.values()) == pytest.approx(found[f"skylane_worker_frame_seconds_sum{{{labels}}}"])
    queued = stages["dequeued"] + stages["batched"]
    assert queued == pytest.approx(found[f"skylane_worker_queue_seconds_sum{{{labels}}}"])
    for stage, seconds in stages.items():
        assert seconds == pytest.approx(sum(float(row[f"{stage}_ms"]) for row in fleet.rows) / 1e3, abs=1e-4)
    assert found[f"skylane_worker_batch_frames_sum{{{labels}}}"] == FRAMES
    assert found[f"skylane_worker_batch_frames_count{{{labels}}}"] <= FRAMES


def test_both_nodes_are_scraped_and_the_rules_give_percentiles(fleet: Fleet) -> None:
    """Without histograms no alert on p95 is possible."""
    assert fleet.until('up{job=~"skylane-.*"}', lambda values: values == [1.0, 1.0])
    for rule in ("worker_frame_seconds:p95", "worker_queue_seconds:p95", "worker_inference_seconds:p95"):
        (value,) = fleet.until(f"skylane:{rule} > 0")
        assert value <= 10
    assert fleet.until("skylane:vehicle_frame_seconds:p95 > 0")
    assert fleet.until("skylane:vehicle_without_result:share >= 0")
    targets = {target["labels"]["job"]: target["health"] for target in fleet.get("targets")["activeTargets"]}
    assert targets == {"skylane-worker": "up", "skylane-vehicle": "up"}


def test_gauges_tell_connection_expiry_and_build(fleet: Fleet) -> None:
    """Both nodes, and each of their certificates."""
    assert fleet.until("skylane_broker_connected", lambda values: values == [1.0, 1.0])
    days = fleet.until("(skylane_certificate_expiry_timestamp_seconds - time()) / 86400", lambda v: len(v) == 4)
    assert sorted(round(each) for each in days)[:2] == [90, 90]
    days = fleet.until("(skylane_revocation_list_expiry_timestamp_seconds - time()) / 86400", lambda v: len(v) == 2)
    assert [round(each) for each in days] == [90, 90]
    assert {labels["node"] for labels, _ in fleet.query("skylane_build_info")} == {"worker", "vehicle"}
    assert 0 < fleet.until("skylane_vehicle_clock_error_seconds")[0] < 10
    fleet.until("skylane_vehicle_frames_in_flight >= 0")


def test_labels_are_bounded_and_name_no_vehicle(fleet: Fleet) -> None:
    """A thousand vehicles must not make a thousand series at each worker."""
    fleet.until("skylane_vehicle_frames_total")
    metrics = [*fleet.query('{__name__=~"skylane_.*"}'), *fleet.query('{__name__=~"nv_.*"}')]
    assert metrics
    allowed = {"__name__", "job", "instance", "model", "version", "stage", "le", "outcome", "reason", "code"}
    allowed |= {"protocol", "certificate", "node"}
    for labels, _ in metrics:
        assert labels.keys() <= allowed
        assert "car" not in labels.values()
        assert "first" not in labels.values()
    for labels, _ in fleet.query("skylane_vehicle_frames_total"):
        assert labels.get("reason", "") in LABELS
        assert labels["outcome"] in [*Outcome]


def expressions() -> Iterator[str]:
    """Yields every expression of the dashboard and of the rules."""
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (each["expr"] for each in DASHBOARD["annotations"]["list"])
    yield from (rule["expr"] for rule in groups())


def metric_names(expression: str) -> set[str]:
    """Returns the metrics of an expression: the words outside of quotes, durations and functions."""
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]', "", expression)
    return set(re.findall(r"[A-Za-z_][A-Za-z0-9_:]*", bare)) - WORDS


def test_every_expression_is_valid_and_uses_metrics_that_exist(fleet: Fleet) -> None:
    """A panel of a metric that was renamed stays empty, and nobody notices."""
    exported = set(fleet.get("label/__name__/values"))
    recorded = {rule["record"] for rule in groups() if "record" in rule}
    declared = {name for url in worker_and_vehicle(fleet) for name in declared_metrics(url)}
    for expression in expressions():
        fleet.query(re.sub(r"\$(vehicle|worker)", ".*", expression))
        names = metric_names(expression)
        assert names
        assert names <= exported | recorded | declared | PROMETHEUS_OWN, expression
    for variable in DASHBOARD["templating"]["list"]:
        (name,) = re.findall(r"label_values\((\w+), instance\)", variable["query"]["query"])
        assert name in exported


def worker_and_vehicle(fleet: Fleet) -> list[str]:
    """Returns the addresses that Prometheus scrapes."""
    return [target["scrapeUrl"] for target in fleet.get("targets")["activeTargets"]]


def declared_metrics(url: str) -> Iterator[str]:
    """Yields the metrics that a node declares, those without samples so far included."""
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", httpx.get(url, timeout=WAIT_S).text, re.MULTILINE):
        yield from (f"{name}{end}" for end in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",)))


def test_the_dashboard_names_the_provisioned_data_source() -> None:
    """Grafana shows "data source not found" otherwise. Panels do not overlap."""
    folder = ROOT / "configs" / "grafana" / "provisioning" / "datasources"
    (source,) = yaml.safe_load((folder / "prometheus.yml").read_text(encoding="utf-8"))["datasources"]
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel.get("datasource", {"uid": source["uid"]})["uid"] == source["uid"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places
        assert at["x"] + at["w"] <= 24
        places |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_compose_profile_mounts_what_the_services_read() -> None:
    """The images cannot be started in a test: their files must at least be where they look for them."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    prometheus, grafana = services["prometheus"], services["grafana"]
    assert prometheus["profiles"] == grafana["profiles"] == ["monitoring"]
    mounted = dict(volume.split(":")[:2] for each in (prometheus, grafana) for volume in each["volumes"])
    provisioning = ROOT / "configs" / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "skylane.yml").read_text(encoding="utf-8"))["providers"]
    assert provider["options"]["path"] == mounted["./configs/grafana/dashboards"]
    assert mounted["./configs/grafana/provisioning"] == "/etc/grafana/provisioning"
    config = yaml.safe_load(RULES.with_name("prometheus.yml").read_text(encoding="utf-8"))
    assert f"--config.file={mounted['./configs/prometheus']}/prometheus.yml" in prometheus["command"]
    for job in config["scrape_configs"]:
        (discovery,) = job["dns_sd_configs"]
        for name in discovery["names"]:
            flag = "--http=" if job["job_name"] == "skylane-worker" else "--metrics="
            command = services[name].get("command") or services["cloud"]["command"]
            assert f"{flag}0.0.0.0:{discovery['port']}" in command, name
