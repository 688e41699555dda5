from pathlib import Path

import pytest

from analysis.study.study_plan import ReuseLimits, cells
from edge.cli import play
from edge.config import EdgeConfig
from ops.study.session import needs_gateway, reuse_flags
from shared.flags import override
from tests.support.simulated_study import plan_of


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
