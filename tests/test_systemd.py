"""The units of configs/systemd: systemd accepts them, and their commands serve and play."""

import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from string import Template

import pytest

from shared.logs import READY
from shared.models.repository import Repository
from shared.runlog.latency_log import read_rows
from tests.pipeline.conftest import models
from tests.pipeline.rig import pictures
from tests.support.command import Command

__all__ = ["models"]

UNITS = sorted((Path(__file__).parents[1] / "configs" / "systemd").iterdir())
PROGRAM = "/opt/skylane/bin/skylane"


def arguments(unit: str, **variables: object) -> list[str]:
    """Returns the arguments of a unit's command, with the specifiers and variables as systemd replaces them."""
    (text,) = (path.read_text(encoding="utf-8") for path in UNITS if path.name == unit)
    (command,) = (line.partition("=")[2] for line in text.splitlines() if line.startswith("ExecStart="))
    command = command.replace("%H", "host").replace("%i", "1")
    program, *words = shlex.split(Template(command).substitute(variables))
    assert program == PROGRAM
    return words


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """It names unknown keys and bad values."""
    verify = shutil.which("systemd-analyze") or pytest.skip("no systemd-analyze")
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text(encoding="utf-8").replace(PROGRAM, sys.executable))
    names = [str(tmp_path / unit.name.replace("@", "@1")) for unit in UNITS]
    found = subprocess.run([verify, "verify", *names], capture_output=True, text=True, check=False)
    assert not [line for line in found.stderr.splitlines() if str(tmp_path) in line], found.stderr


def test_the_commands_of_the_units_serve_and_play(mosquitto_url: str, models: Path, tmp_path: Path) -> None:
    """The worker answers the frames of the vehicle, and ends in order."""
    settings = {"vehicle": f"broker: {mosquitto_url}\nmodel: tiny\nclosed_loop: true\nout: {tmp_path / 'run'}\n"}
    settings["worker"] = f"broker: {mosquitto_url}\nrepository: {Repository(models).root}\nmodels: [tiny]\n"
    for name, text in settings.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    flags = {"SKYLANE_FLAGS": "", "SKYLANE_SOURCE": pictures(tmp_path, 4)}
    worker, vehicle = (
        [word.replace("/etc/skylane", str(tmp_path)) for word in arguments(unit, **flags)]
        for unit in ("skylane-worker@.service", "skylane-vehicle.service")
    )
    with Command(*worker) as first:
        first.wait_for(READY)
        with Command(*vehicle) as playing:
            assert playing.wait()[0] == 0, playing.log_lines
        assert first.end(signal.SIGTERM)[0] == 0
    assert [(row["worker"], row["vehicle"], row["outcome"]) for row in read_rows(tmp_path / "run")] == [
        ("host-1", "host", "answered")
    ] * 4
