"""The command line: what it prints, and its exit code."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from skylane import cli
from tests.ops.batch.rig import MODEL, MODELS, write_library


def arguments(library: Path, out: Path, *more: str) -> list[str]:
    """Returns the arguments of a batch in one process."""
    return [str(library), "--out", str(out), "--model", MODEL, "--models", str(MODELS), "--processes", "1", *more]


def batch(capfd: pytest.CaptureFixture[str], *given: str) -> tuple[int, str, str]:
    """Runs `skylane batch`; returns its exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["batch", *given])
    printed = capfd.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def test_a_library_is_done_and_the_table_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The last line says where the result is; a second run says that nothing was to be done."""
    library, out = write_library(tmp_path / "library", bags=2), tmp_path / "out"
    code, printed, errors = batch(capfd, *arguments(library, out))
    assert (code, printed.strip()) == (0, f"{out}/frames.parquet: 7 frames of 2 bags")
    assert "bags: 2, to do: 2" in errors
    assert "1.bag: 4 frames" in errors
    code, printed, errors = batch(capfd, *arguments(library, out))
    assert (code, printed.strip()) == (0, f"{out}/frames.parquet: 7 frames of 2 bags, 2 of them before")
    assert "to do: 0" in errors


def test_a_failed_bag_is_in_the_closing_table_and_the_exit_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A script must notice; the other bags have their results."""
    library, out = write_library(tmp_path / "library", bags=1), tmp_path / "out"
    (library / "broken.bag").write_text("no bag")
    code, printed, errors = batch(capfd, *arguments(library, out))
    assert code == 1
    assert "broken.bag" in printed
    assert "1 of 2 bags have no results" in errors
    assert f"{out}/frames.parquet: 3 frames of 1 bags" in printed


def test_an_unknown_model_is_refused_before_anything_is_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The message offers the nearest name."""
    library, out = write_library(tmp_path / "library", bags=1), tmp_path / "out"
    code, _, errors = batch(capfd, *arguments(library, out, "--model", "road-tinny"))
    assert code == 1
    assert "did you mean road-tiny" in errors
    assert not out.exists()


def test_impossible_values_are_usage_errors(tmp_path: Path) -> None:
    """Click names the flag."""
    for flags in (("--threads", "0"), ("--masks", "gif"), ("--processes", "0"), ("--ray-address", "host:6379")):
        result = CliRunner().invoke(cli.skylane, ["batch", *arguments(tmp_path, tmp_path / "out", *flags)])
        assert result.exit_code == 2
        assert flags[0] in result.output
