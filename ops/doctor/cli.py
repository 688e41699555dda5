"""The command `skylane doctor`: checks a node's set-up and prints the cause and the remedy of every fault."""

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from cloud.config import CloudConfig
from edge.config import EdgeConfig
from ops.doctor import connection, machine
from ops.doctor.check import ERROR, OK, SKIPPED, WARNING, Check, Checks, run_side_by_side
from shared.config import ConfigError, read_yaml
from shared.flags import GroupedCommand, key_options, override
from shared.logs import configure_logging
from shared.mqtt.broker_options import broker_options
from shared.runlog.run_folder import RUNS
from shared.sanitize import printable
from shared.terminal_table import Table

_DEADLINE_S = 4.0
_FRAME_DEADLINE_S = 25.0
_EXIT_CODES = {ERROR: 1, WARNING: 3}  # The worst one first.
_STYLES = {OK: "green", SKIPPED: "dim", WARNING: "yellow", ERROR: "bold red"}
_CONFIGS: dict[str, type[EdgeConfig | CloudConfig]] = {"vehicle": EdgeConfig, "worker": CloudConfig}


@click.command(cls=GroupedCommand)
@click.argument("role", type=click.Choice(list(_CONFIGS)), default="vehicle")
@click.option("--config", type=click.Path(path_type=Path), help="The node's configuration file (YAML).")
@click.option("--frame/--no-frame", default=True, show_default=True, help="Send one test frame to a worker.")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
@key_options(EdgeConfig, "Vehicle", "vehicle", "model", "transport", "worker_addresses", "worker_tls_ca", "out")
@key_options(CloudConfig, "Worker", "worker", "repository", "http", "grpc")
@broker_options
def doctor(role: str, config: Path | None, *, frame: bool, as_json: bool, **flags: Any) -> None:
    """Check this machine, its files, the broker and the workers; print the cause and one remedy of every fault.

    ROLE is the node that this machine runs: vehicle (default) or worker. Give the options and the configuration file of
    its `skylane edge play` or `skylane cloud serve`.

    The exit code is 0, or 1 if a check found an error, 3 if the worst are warnings, 2 for a wrong command line.
    """
    configure_logging(level="critical")
    settings, checks = _settings(role, config, flags)
    is_valid = all(check.severity is OK for check in checks)
    name = settings.vehicle if isinstance(settings, EdgeConfig) else settings.worker or "worker"
    node = connection.Node(settings, name)
    deadline_s = (_FRAME_DEADLINE_S if frame else _DEADLINE_S) + 2 * (node.timeout_s - connection.TIMEOUT_S)
    groups = _machine_groups(settings)
    if is_valid:
        groups |= connection.groups(node, with_frame=frame)
    else:
        checks.append(Check("broker", SKIPPED, "the configuration is not valid"))
    checks += run_side_by_side(groups, deadline_s)
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        _print(checks, Console())
    severities = {check.severity for check in checks}
    sys.exit(next((code for severity, code in _EXIT_CODES.items() if severity in severities), 0))


def _settings(role: str, path: Path | None, flags: dict[str, Any]) -> tuple[EdgeConfig | CloudConfig, list[Check]]:
    """Returns the settings, and the check of the configuration file; a broken file counts as an empty one."""
    kind = _CONFIGS[role]
    given = {key: value for key, value in flags.items() if key in kind.model_fields}
    if role == "worker" and flags["model"] is not None:
        given["models"] = (flags["model"],)
    if path is None:
        return override(kind(), given), []
    try:
        return override(read_yaml(path, kind), given), [Check("configuration", OK, f"{path} is valid")]
    except ConfigError as error:
        return override(kind(), given), [Check("configuration", ERROR, str(error), f"${{EDITOR:-vi}} {path}")]


def _machine_groups(config: EdgeConfig | CloudConfig) -> dict[str, Checks]:
    """Returns the groups of checks of this machine, which are made side by side, in the order of the table."""
    own: dict[str, Checks] = {}
    if isinstance(config, EdgeConfig):
        own = {"disk": partial(machine.disk, config.out or RUNS), "runs": machine.interrupted_runs}
    return {
        "libraries": partial(machine.libraries, config),
        "processor": partial(machine.processor, config),
        "GPU": partial(machine.gpu, config),
        "models": partial(machine.models, config),
        "clock": machine.clock_synchronisation,
        **own,
        "ports": partial(machine.ports, config),
    }


def _print(checks: list[Check], console: Console) -> None:
    table = Table(title="skylane doctor")
    for heading in ("check", "result"):
        table.add_column(heading, no_wrap=True)
    table.add_column("finding")
    for check in checks:
        table.add_row(Text(check.name), Text(check.severity, style=_STYLES[check.severity]), Text(check.finding))
    console.print(table)
    for check in sorted(checks, key=lambda check: check.severity is not ERROR):
        if check.severity in _EXIT_CODES:
            text = printable(f"{check.name}: {check.finding}")
            console.print(Text.assemble((f"{check.severity}: ", _STYLES[check.severity]), text), soft_wrap=True)
            console.print(Text(f"    {printable(check.remedy)}", style="bold"), soft_wrap=True)
