"""Every route of the OpenAPI document, called in all the ways that it allows and in some that it does not."""

from contextlib import suppress
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from cloud.gateway.settings import GatewaySettings
from tests.support.gateway import open_gateway
from tests.support.tiny_model import model

EXAMPLES = 3  # Of each route, as it allows and as it does not; always the same, so a failure is found again.


def test_no_call_meets_a_fault_and_every_answer_is_as_the_document_says() -> None:
    """Whoever makes a client of the document relies on it; and nobody may end the worker by a call."""
    called: set[str] = set()

    @settings(
        max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    def answers_as_it_says(case: Any) -> None:
        called.add(case.operation.label)
        case.call_and_validate(excluded_checks=[positive_data_acceptance])  # No document tells what is served.

    with open_gateway(model(), gateway=GatewaySettings(http="127.0.0.1:0", max_message_bytes=1 << 20)) as doors:
        schema = schemathesis.openapi.from_url(f"http://{doors.http}/openapi.json")
        routes = [found.ok() for found in schema.get_all_operations()]
        for route in routes:
            given(case=route.as_strategy())(answers_as_it_says)()
            with suppress(Unsatisfiable):  # What takes nothing cannot be given it wrongly.
                given(case=route.as_strategy(generation_mode=GenerationMode.NEGATIVE))(answers_as_it_says)()
    assert len(called) == len(routes) > 20
