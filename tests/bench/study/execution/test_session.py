from pathlib import Path

from bench.study.execution.session import needs_gateway
from bench.study.plan.study_plan import cells
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
