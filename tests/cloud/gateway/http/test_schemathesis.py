"""Calls every route of the OpenAPI document with generated valid and invalid requests."""

from contextlib import suppress
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.support.gateway import open_gateway
from tests.support.tiny_model import model

EXAMPLES = 2  # Valid and invalid requests per route; they are the same in each run.


def test_responses_match_the_openapi_document() -> None:
    """Clients are generated from it; and no call may cause an unexpected error."""
    called: set[str] = set()

    @settings(
        max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    def check(case: Any) -> None:
        called.add(case.operation.label)
        case.call_and_validate(excluded_checks=[positive_data_acceptance])  # The document does not list the models.

    with open_gateway(model(), http="127.0.0.1:0", max_message_bytes=1 << 20) as worker:
        schema = schemathesis.openapi.from_url(f"http://{worker.http}/openapi.json")
        routes = [result.ok() for result in schema.get_all_operations()]
        for route in routes:
            given(case=route.as_strategy())(check)()
            with suppress(Unsatisfiable):  # Routes without parameters have no invalid requests.
                given(case=route.as_strategy(generation_mode=GenerationMode.NEGATIVE))(check)()
    assert len(called) == len(routes) > 20
