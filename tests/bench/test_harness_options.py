from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bench import harness
from bench.cli import bench
from shared.errors import SkylaneError


@dataclass(frozen=True, slots=True)
class _Plan:
    """A plan with a setting that was renamed."""

    transports: tuple[str, ...] = harness.choices("abc", ("a", "b"), "Transport.", "--transport", old="--door")
    frames: int = harness.frames(20)


_gateway = harness.bench_command(
    "gateway",
    _Plan,
    lambda plan, _: {"used": f"{' '.join(plan.transports)}, {plan.frames} frames"},
    lambda result: [result["used"]],
)


@pytest.mark.parametrize(
    ("flags", "used", "warning"),
    [
        ([], "a b, 20 frames", ""),
        (["--transport", "c", "--frames", "30"], "c, 30 frames", ""),
        (["--door", "c", "--door", "a"], "c a, 20 frames", "warning: --door is now called --transport"),
    ],
)
def test_an_option_sets_its_field_also_by_its_old_name(flags: list[str], used: str, warning: str) -> None:
    """Scripts of the last release still work; help and warning name the new option."""
    done = CliRunner().invoke(_gateway, flags, catch_exceptions=False)
    assert done.stdout.splitlines()[0] == used
    assert (warning in done.stderr) if warning else not done.stderr.strip()
    assert "--door" not in CliRunner().invoke(_gateway, ["--help"]).stdout


def test_a_result_that_cannot_be_written_is_refused_before_the_measurement(tmp_path: Path) -> None:
    """It would be lost after minutes."""
    (tmp_path / "file").touch()

    def measure(plan: _Plan, _: object) -> dict[str, object]:
        raise AssertionError(plan)

    command = harness.bench_command("gateway", _Plan, measure, lambda _: [], json=harness.JSON_FILE)
    done = CliRunner().invoke(command, ["--json", str(tmp_path / "file" / "result.json")])
    assert isinstance(done.exception, SkylaneError)
    assert str(done.exception).endswith("file exists and is not a folder: choose another --json")


def test_the_old_name_of_a_command_warns_and_runs_it() -> None:
    """`skylane bench doors` is `skylane bench gateway` for one more release, and not listed."""
    old = harness.renamed_command("doors", _gateway)
    done = CliRunner().invoke(old, ["--frames", "30"], catch_exceptions=False)
    assert done.stdout.splitlines()[0] == "a b, 30 frames"
    assert "bench doors is now called bench gateway" in done.stderr
    context = click.Context(bench)
    doors, gateway = (bench.get_command(context, name) for name in ("doors", "gateway"))
    assert doors is not None
    assert gateway is not None
    assert doors.params == gateway.params
    assert "doors" not in CliRunner().invoke(bench, ["--help"]).stdout


def test_a_number_out_of_its_range_is_rejected() -> None:
    """The range is stated beside the default, once."""
    done = CliRunner().invoke(_gateway, ["--frames", "3"])
    assert done.exit_code == 2
    assert "3 is too small: give a whole number from 4 to 10000" in done.output
