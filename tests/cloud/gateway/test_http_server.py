"""What every HTTP call meets, whatever its route."""

from collections.abc import Iterator

import httpx
import pytest

from cloud.gateway.settings import GatewaySettings
from tests.cloud.channel import model
from tests.cloud.gateway.rig import Doors, open_doors


@pytest.fixture(name="doors", scope="module")
def _doors() -> Iterator[Doors]:
    with open_doors(model(), gateway=GatewaySettings(http="127.0.0.1:0")) as doors:
        yield doors


def test_health_tells_that_the_worker_takes_calls(doors: Doors) -> None:
    """A balancer sends it calls only then."""
    answer = httpx.get(f"http://{doors.http}/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready", "worker": "w", "models": ["tiny"]})


def test_an_unknown_path_is_refused_in_the_form_of_all_errors(doors: Doors) -> None:
    """A client reads one form."""
    answer = httpx.get(f"http://{doors.http}/nothing")
    assert answer.status_code == 404
    assert answer.json() == {"error": "Not Found"}
