from pathlib import Path

from bench.study.execution.session import WorkerPorts, needs_gateway
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


def test_each_transport_has_the_port_of_its_protocol() -> None:
    """The transports based on gRPC share a port, and so do those based on HTTP."""
    ports = WorkerPorts(grpc=1, http=2)
    transports = ("grpc", "tfs-grpc", "oip-grpc", "oip-rest", "tfs-rest")
    assert [ports.port(transport) for transport in transports] == [1, 1, 1, 2, 2]


def test_the_ports_of_all_workers_are_different() -> None:
    """If ports are requested one after the other, the system sometimes returns the same port twice."""
    workers = WorkerPorts.free(200)
    assert len({port for ports in workers for port in (ports.grpc, ports.http)}) == 2 * len(workers) == 400
