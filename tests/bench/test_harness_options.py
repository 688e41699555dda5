import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import harness
from shared.errors import SkylaneError


@dataclass(frozen=True, slots=True)
class _Plan:
    """A plan with a choice and a number."""

    transports: tuple[str, ...] = harness.choices("abc", ("a", "b"), "Transport.", "--transport")
    frames: int = harness.frames(20)


_gateway = harness.bench_command(
    "gateway",
    _Plan,
    lambda plan, _: {"used": f"{' '.join(plan.transports)}, {plan.frames} frames"},
    lambda result: [result["used"]],
)


@pytest.mark.parametrize(
    ("flags", "used"),
    [([], "a b, 20 frames"), (["--transport", "c", "--frames", "30"], "c, 30 frames")],
)
def test_an_option_sets_its_field(flags: list[str], used: str) -> None:
    """A repeatable one replaces the default."""
    done = CliRunner().invoke(_gateway, flags, catch_exceptions=False)
    assert done.stdout.splitlines()[0] == used


def test_a_result_that_cannot_be_written_is_refused_before_the_measurement(tmp_path: Path) -> None:
    """It would be lost after minutes."""
    (tmp_path / "file").touch()

    def measure(plan: _Plan, _: object) -> dict[str, object]:
        raise AssertionError(plan)

    command = harness.bench_command("gateway", _Plan, measure, lambda _: [])
    done = CliRunner().invoke(command, ["--json", str(tmp_path / "file" / "result.json")])
    assert isinstance(done.exception, SkylaneError)
    assert str(done.exception).endswith("file exists and is not a folder: choose another --json")


def test_the_result_is_printed_and_written(tmp_path: Path) -> None:
    """The file is for programs, and says on which machine."""
    path = tmp_path / "result.json"
    done = CliRunner().invoke(_gateway, ["--json", str(path)], catch_exceptions=False)
    assert done.stdout.startswith("a b, 20 frames\n")
    assert "cores" in done.stdout
    assert json.loads(path.read_text()).keys() == {"used", "machine"}


def test_a_number_out_of_its_range_is_rejected() -> None:
    """The range is stated beside the default, once."""
    done = CliRunner().invoke(_gateway, ["--frames", "3"])
    assert done.exit_code == 2
    assert "3 is too small: give a whole number from 4 to 10000" in done.output
