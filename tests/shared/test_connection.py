from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from shared.bus import Will
from shared.connection import DEFAULT_BROKER, Connection, broker_options
from shared.errors import SkylaneError


@click.command()
@broker_options
def _command(**flags: Any) -> None:
    click.echo(repr(Connection(**{key: value for key, value in flags.items() if value is not None})))


def test_without_flags_the_broker_is_this_machines() -> None:
    """As `skylane broker` starts it."""
    assert f"broker={DEFAULT_BROKER!r}" in CliRunner().invoke(_command).output


def test_the_environment_names_the_broker_and_a_flag_wins() -> None:
    """A container is told by its environment."""
    run = CliRunner(env={"SKYLANE_BROKER": "mqtt://there"})
    assert "broker='mqtt://there'" in run.invoke(_command).output
    assert "broker='mqtt://here'" in run.invoke(_command, ["--broker", "mqtt://here"]).output


def test_every_flag_arrives_as_a_field(tmp_path: Path) -> None:
    """Names that differ would be a traceback at the first use."""
    pem = tmp_path / "x.pem"
    pem.touch()
    flags = ["--connect-timeout", "2", "--tls-ca", str(pem), "--tls-cert", str(pem), "--tls-key", str(pem)]
    output = CliRunner().invoke(_command, flags).output
    assert "connect_timeout_s=2.0" in output
    assert output.count("x.pem") == 3


@pytest.mark.parametrize("flags", [["--connect-timeout", "0"], ["--tls-ca", "/nowhere/ca.pem"]])
def test_a_flag_that_cannot_be_is_bad_usage(flags: list[str]) -> None:
    """Told before anything is connected."""
    assert CliRunner().invoke(_command, flags).exit_code == 2


def test_an_address_that_cannot_be_read_is_told() -> None:
    """One line."""
    with pytest.raises(SkylaneError, match="write mqtt://host:1883"):
        Connection(broker="http://x").open("test", Will("t", b""))
