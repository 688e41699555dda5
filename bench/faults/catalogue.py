"""The table of all fault scenarios."""

from collections.abc import Sequence

from bench.faults.scenario import Scenario
from bench.faults.scenarios import (
    brokers,
    callers,
    hostile_senders,
    links,
    load,
    message_faults,
    models,
    narrow_links,
    protocol_abuse,
    vehicle,
    workers,
)
from shared.errors import SkylaneError, suggestion

_GROUPS = (
    message_faults,
    brokers,
    callers,
    protocol_abuse,
    hostile_senders,
    links,
    load,
    models,
    narrow_links,
    vehicle,
    workers,
)
SCENARIOS = tuple(
    sorted((scenario for group in _GROUPS for scenario in group.SCENARIOS), key=lambda scenario: scenario.number)
)


class UnknownScenarioError(SkylaneError):
    """There is no scenario with the given name or number."""


def chosen(names: Sequence[str]) -> tuple[Scenario, ...]:
    """Returns the scenarios with these names or numbers, ordered by number; all if `names` is empty.

    Raises:
        UnknownScenarioError: a scenario does not exist.
    """
    known = {key: scenario for scenario in SCENARIOS for key in (scenario.name, str(scenario.number))}
    for name in names:
        if name not in known:
            hint = suggestion(name, {scenario.name for scenario in SCENARIOS})
            raise UnknownScenarioError(f"no scenario {name!r}{hint}; 'skylane bench faults --list' shows all")
    wanted = {known[name].number for name in names}
    return tuple(scenario for scenario in SCENARIOS if not names or scenario.number in wanted)
