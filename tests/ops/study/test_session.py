from pathlib import Path

import pytest

from analysis.study.study_plan import ReuseLimits, cells, read_plan
from edge.cli import play
from edge.config import EdgeConfig
from ops.processes.null_worker import NullWorkerProcess
from ops.study.session import ProcessSession, needs_gateway, open_session, reuse_flags
from ops.study.variants import ModelVariants
from shared.flags import override
from tests.support import tiny_models
from tests.support.simulated_study import plan_file, plan_of

ROOT = Path(__file__).parents[3]


def test_workers_open_a_gateway_only_for_cells_that_use_it(tmp_path: Path) -> None:
    """A worker measured with MQTT alone must not run a gateway."""
    planned = cells(
        plan_of(
            tmp_path,
            axes={"transport": ["mqtt", "oip-rest"], "engine": ["tensorflow", "openvino"]},
            exclude=[{"transport": "oip-rest", "engine": "openvino"}],
        )
    )
    gateways = {cell.engine: needs_gateway(cell.setup, planned) for cell in planned}
    assert gateways == {"tensorflow": True, "openvino": False}


@pytest.mark.mosquitto
def test_workers_of_a_fixed_time_are_named_in_order_and_have_the_answers_of_their_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place of the resizing changes the pixels, so its answers are others; without the axis it is the scenario's."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    axes = {
        "model": tiny_models.write(tmp_path / "models", "segmentation"),
        "scenario": "camera",
        "resolution": "192x128",
        "resize_at": [None, "cloud"],
        "transport": ["mqtt", "oip-rest"],
        "workers": 2,
        "fixed_inference_ms": "1/2",
    }
    plan = read_plan(plan_file(tmp_path, axes=axes, drive_frames=2), tmp_path / "models")
    variants = ModelVariants(tmp_path / "models", tmp_path / "built")
    with open_session(plan, cells(plan)[0].setup, variants, tmp_path / "logs") as session:
        assert isinstance(session, ProcessSession)
        assert all(isinstance(worker, NullWorkerProcess) for worker in session.workers)
        assert [worker.name for worker in session.workers] == ["worker-1", "worker-2"]
        assert {kind: len(ports) for kind, ports in session.ports.items()} == {"grpc": 2, "http": 2}
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["worker-1.log", "worker-2.log"]
    encodings = [path.name.split("-")[-2] for path in (tmp_path / "runs" / "answers").glob("*.npz")]
    assert sorted(encodings) == ["cloud", "edge"]


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({}, {"gate": None, "local_model": None, "cascade": False}),
        ({"gate": "mse"}, {"gate": "mse", "gate_threshold": "auto", "reuse_frames": 20, "reuse_ms": 1500.0}),
        ({"gate": "pixels-2.5"}, {"gate": "pixels", "gate_threshold": 2.5}),
        ({"local_model": "road-small"}, {"local_model": "road-small", "cascade": False}),
        ({"local_model": "road-small", "cascade": "tuned"}, {"cascade": True, "c_low": None, "c_high": None}),
        ({"local_model": "road-small", "cascade": "0.1-0.95"}, {"cascade": True, "c_low": 0.1, "c_high": 0.95}),
    ],
)
def test_vehicles_get_the_gate_and_the_cascade_of_their_cell(
    tmp_path: Path, axes: dict[str, object], expected: dict[str, object]
) -> None:
    """The flags are those of `skylane edge play`."""
    (cell,) = cells(plan_of(tmp_path, axes=axes))
    flags = reuse_flags(ReuseLimits(frames=20, ms=1500), cell, tmp_path)
    parsed = play.make_context("play", ["source", *flags], resilient_parsing=False).params
    config = override(EdgeConfig(), {key: value for key, value in parsed.items() if key in EdgeConfig.model_fields})
    assert {key: getattr(config, key) for key in expected} == expected
