"""Runs a worker as configured: loads its models, connects its parts and serves until it is stopped."""

import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

from cloud.config import CloudConfig
from cloud.frontends.mqtt import worker_will
from cloud.isolation.engine import IsolationLimits
from cloud.models.loader import ModelLoader
from cloud.node import CloudNode
from cloud.preflight import check_gateway, warn_if_pids_limit_is_low
from cloud.serving.request import Request
from shared import clock
from shared.errors import SkylaneError
from shared.inference.model import Model
from shared.logs import READY, RateLimitedLogger, get_logger
from shared.messages.frame import ResultMessage
from shared.models.manifest import Placement
from shared.models.repository import Repository, default_root
from shared.mqtt.bus import Bus, NoBus
from shared.mqtt.name_guard import client_id
from shared.recent_frames import RecentFrames
from shared.registry import Entry, load
from shared.resources.sampler import ResourceSampler
from shared.runtime.machine import package_version
from shared.runtime.processes import on_termination_signals

_LOG = get_logger("cloud")
_WAITING = RateLimitedLogger(_LOG)


class NothingServedError(SkylaneError):
    """No model of the repository can be loaded."""


class CountSummary:
    """Logs the growth of a worker's counts periodically."""

    def __init__(self, period_s: float = 60.0) -> None:
        self._period_ns = round(period_s * 1e9)
        self._counts: dict[str, int] = {}
        self._logged_ns = clock.now_ns()

    def update(self, counts: Mapping[str, int], recent: RecentFrames) -> None:
        """Logs the summary if the period is over and a count has grown, with the times of the last minute."""
        now_ns = clock.now_ns()
        if now_ns - self._logged_ns < self._period_ns:
            return
        grown = Counter(counts) - Counter(self._counts)
        if grown:
            times = {
                f"{name}_{quantile}_ms": round(value, 1)
                for name, found in recent.summary().times.items()
                for quantile, value in (("p50", found.p50_ms), ("p95", found.p95_ms))
                if value is not None
            }
            seconds = round((now_ns - self._logged_ns) / 1e9)
            _LOG.info("summary", seconds=seconds, **dict(sorted(grown.items())), **times)
        self._counts, self._logged_ns = dict(counts), now_ns


def run(config: CloudConfig, resources: Path | None) -> None:
    """Runs a worker until a termination signal.

    Args:
        config: The configuration; the worker has a name.
        resources: The file for the samples of the worker's resource use.

    Raises:
        SkylaneError: the worker could not start, or ended with an error.
        SystemExit: a termination signal came before it served.
    """
    assert config.worker is not None
    if config.addresses:
        check_gateway(config)
    with nullcontext() if config.otel is None else load("option", _EXPORTS, "--otel")(config) as export:
        _run_one(config, resources, export)


_EXPORTS = {"--otel": Entry("cloud.serving.frame_spans:export_replies", "otel")}


def _run_one(
    config: CloudConfig, resources: Path | None, export: Callable[[Request, ResultMessage], None] | None
) -> None:
    _LOG.info(
        "starting",
        version=package_version("skylane") or "unknown",  # It may run from a source tree.
        models=", ".join(config.models) or "all",
        engine=config.engine or "as each manifest says",
        device=config.device,
        pid=os.getpid(),
    )
    loader = _loader(config)
    warn_if_pids_limit_is_low(config, len(config.models or loader.repository.names()))
    session = uuid.uuid4().hex[:12]
    node = CloudNode((), config, session=session, loader=loader)
    if export is not None:
        node.replier.on_replied.append(export)
    node.bind()  # A port in use must be reported before the models are loaded, which takes minutes.
    on_termination_signals(lambda *_: sys.exit(0))
    try:
        node.add(_load_models(loader, config.models))
    except SystemExit:
        _LOG.info("stopped", reason="asked to stop before it was ready")
        raise
    sampler = ResourceSampler(resources, {f"worker/{config.worker}": os.getpid()}) if resources else None
    with sampler or nullcontext():
        _serve(node, config, session, sampler)
    _LOG.info("stopped", **dict(sorted(node.counts.items())))
    for line in sampler.report_lines() if sampler else ():
        _LOG.info("resources used", usage=line)


def _serve(node: CloudNode, config: CloudConfig, session: str, sampler: ResourceSampler | None) -> None:
    on_termination_signals(lambda *_: node.stop())
    bus = NoBus() if config.no_broker else _connect(node, config, session)
    summary = CountSummary()
    sampled: dict[str, int] = {}

    def on_tick() -> None:
        """Adds new processes of isolated engines to the sampler, and logs the summary."""
        if sampler:
            for engine, pid in node.engine_processes.items():
                if sampled.get(engine) != pid:
                    sampled[engine] = pid
                    sampler.watch(f"worker/{config.worker}/{engine}", pid)
        summary.update(node.counts, node.replier.recent)

    node.serve(bus, on_tick, lambda: _LOG.info(READY, **{f"{kind}_port": port for kind, port in node.ports.items()}))
    on_termination_signals(signal.SIG_IGN)  # A second signal must not change the exit code of a drained worker.


def _connect(node: CloudNode, config: CloudConfig, session: str) -> Bus:
    assert config.worker is not None
    return config.connection.open(
        client_id("worker", config.worker),
        worker_will(config.worker, session),
        name=config.worker,
        on_connected=node.announce,
        on_fault=node.threads.fault,
        on_waiting=lambda reason: _WAITING.warning(reason, "no connection to the broker", reason=reason),
    )


def _loader(config: CloudConfig) -> ModelLoader:
    memory_mb = config.isolate_memory_mb
    return ModelLoader(
        repository=Repository(config.repository or default_root()),
        placement=Placement(
            device=config.device,
            intra_threads=config.threads,
            precision=config.precision,
            instances=config.instances,
        ),
        max_batch=config.max_batch,
        warm_up_runs=config.warm_up_runs,
        engine=config.engine,
        isolation=IsolationLimits(
            config.isolate_hang_s, config.isolate_start_s, None if memory_mb is None else memory_mb << 20
        )
        if config.isolate
        else None,
    )


def _load_models(loader: ModelLoader, wanted: tuple[str, ...]) -> list[Model]:
    """Loads all named models, or without names all models of the repository that can be loaded."""
    if wanted:
        return [loader.load(loader.find(name)) for name in wanted]
    root = loader.repository.root
    names = loader.repository.names()
    if not names:
        raise NothingServedError(f"repository {root} has no models: run 'skylane model build road-small'")
    models = []
    for name in names:
        with suppress(Exception):  # The loader has logged the error; the other models are served.
            models.append(loader.load(loader.find(name)))
    if not models:
        reasons = "; ".join(f"{name}: {reason}" for (name, _), reason in loader.problems.items())
        raise NothingServedError(f"no model of repository {root} can be served: {reasons}")
    return models
