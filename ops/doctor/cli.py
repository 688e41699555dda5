"""The command `skylane doctor`: checks a node's set-up and prints the cause and the remedy of every fault."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from cloud.config import CloudConfig
from edge.config import EdgeConfig
from ops.doctor import connection, machine
from ops.doctor.check import Check, Checks, Severity, run_side_by_side
from shared.config import ConfigError, read_yaml
from shared.flags import GroupedCommand, key_options, override
from shared.logs import configure_logging
from shared.messages.topics import sanitize_name
from shared.models.repository import default_root
from shared.mqtt.broker_options import broker_options
from shared.runlog.run_folder import RUNS
from shared.terminal_table import Table

_DEADLINE_S = 4.5
_FRAME_DEADLINE_S = 25.0
_EXIT_CODES = {Severity.WARNING: 3, Severity.ERROR: 1}
_STYLES = {Severity.OK: "green", Severity.SKIPPED: "dim", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}
_WORST_FIRST = (Severity.ERROR, Severity.WARNING)
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
    found, checks = _settings(role, config, flags)
    name = found.vehicle if isinstance(found, EdgeConfig) else found.worker or ""
    checks += run_side_by_side(_groups(found, name, with_frame=frame), _FRAME_DEADLINE_S if frame else _DEADLINE_S)
    if as_json:
        click.echo(json.dumps([check.record() for check in checks], indent=2))
    else:
        _print(checks, Console())
    severities = {check.severity for check in checks}
    sys.exit(next((_EXIT_CODES[each] for each in _WORST_FIRST if each in severities), 0))


def _settings(role: str, path: Path | None, flags: dict[str, Any]) -> tuple[EdgeConfig | CloudConfig, list[Check]]:
    """Returns the settings, and the check of the configuration file; a broken file counts as an empty one."""
    kind = _CONFIGS[role]
    given = {key: value for key, value in flags.items() if key in kind.model_fields}
    if role == "worker" and flags["model"] is not None:
        given["models"] = (flags["model"],)
    if path is None:
        return override(kind(), given), []
    try:
        read = read_yaml(path, kind)
    except ConfigError as error:
        key = f" at {error.key}" if error.key else ""
        cause = f"{path}{key}: {error.problem}"
        return override(kind(), given), [Check.error("configuration", cause, f"${{EDITOR:-vi}} {path}")]
    return override(read, given), [Check.ok("configuration", f"{path} is valid")]


def _groups(config: EdgeConfig | CloudConfig, name: str, *, with_frame: bool) -> dict[str, Checks]:
    """Returns the groups of checks, which are made side by side, in the order of the table."""
    groups: dict[str, Checks] = {
        check.__name__: partial(check, config)
        for check in (machine.libraries, machine.processor, machine.gpu, machine.models)
    }
    groups["clock"] = machine.clock_synchronisation
    if isinstance(config, CloudConfig):
        groups["disk"] = partial(machine.disk, config.repository or default_root())
        groups["ports"] = partial(machine.ports, config)
    else:
        groups["disk"] = partial(machine.disk, config.out or RUNS)
        groups["runs"] = machine.interrupted_runs
    node = connection.Node(config, name or sanitize_name("worker"))
    groups["broker"] = partial(connection.connection, node, with_frame=with_frame)
    return groups


def _print(checks: list[Check], console: Console) -> None:
    table = Table(title="skylane doctor")
    for heading in ("check", "result"):
        table.add_column(heading, no_wrap=True)
    table.add_column("finding")
    for check in checks:
        table.add_row(Text(check.name), Text(check.severity, style=_STYLES[check.severity]), Text(check.finding))
    console.print(table)
    for severity in _WORST_FIRST:
        for check in checks:
            if check.severity is severity:
                line = Text.assemble((f"{check.severity}: ", _STYLES[severity]), f"{check.name}: {check.finding}")
                console.print(line, soft_wrap=True)
                console.print(Text(f"    {check.remedy}", style="bold"), soft_wrap=True)
