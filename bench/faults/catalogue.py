"""The table of all fault scenarios."""

import pkgutil
from collections.abc import Sequence
from importlib import import_module

from bench.faults import scenarios
from bench.faults.scenario import DECLARED, Scenario
from shared.errors import SkylaneError, suggestion

for _module in pkgutil.iter_modules(scenarios.__path__, f"{scenarios.__name__}."):
    import_module(_module.name)
SCENARIOS = tuple(sorted(DECLARED, key=lambda scenario: scenario.number))


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
