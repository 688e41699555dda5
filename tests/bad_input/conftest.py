"""What the tests of bad input share: a command that must fail, a folder of pictures."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

import skylane
from shared.log_lines import read_line
from tests.bad_input.worker import HEIGHT, WIDTH


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """The command line installs handlers of its own; the tests' come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must end with exit code 1 and one line beside its log on standard error; returns the line."""

    def run(*arguments: object) -> str:
        with pytest.raises(SystemExit) as ended:
            skylane.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert ended.value.code == 1, printed
        (line,) = (line for line in printed.err.splitlines() if read_line(line) is None)
        assert line.startswith("skylane: ")
        return line

    return run


@pytest.fixture
def misused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command line that must end with exit code 2 and the usage; returns what was printed."""

    def run(*arguments: object) -> str:
        with pytest.raises(SystemExit) as ended:
            skylane.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert ended.value.code == 2, printed
        assert printed.err.startswith("Usage: ")
        assert not printed.out
        return printed.err

    return run


@pytest.fixture
def pictures(tmp_path: Path) -> Callable[[int], Path]:
    """Makes a folder of so many pictures of the model's size."""

    def make(count: int) -> Path:
        folder = tmp_path / "pictures"
        folder.mkdir()
        for index in range(count):
            noise = np.random.default_rng(index).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
            cv2.imwrite(str(folder / f"{index:03d}.png"), noise)
        return folder

    return make
