"""Fixtures for tests of bad input: commands that must fail, and a folder of images."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from shared.logs import read_line
from skylane import cli
from tests.support.tiny_model import HEIGHT, WIDTH


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must exit with code 1 and one error line besides its log; returns that line."""

    def run(*arguments: object) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert ended.value.code == 1, printed
        (line,) = (line for line in printed.err.splitlines() if read_line(line) is None)
        assert line.startswith("skylane: ")
        return line

    return run


@pytest.fixture
def usage_error(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must exit with code 2 and the usage; returns standard error."""

    def run(*arguments: object) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert ended.value.code == 2, printed
        assert printed.err.startswith("Usage: ")
        assert not printed.out
        return printed.err

    return run


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[[int], Path]:
    """Creates a folder with a number of images of the model's size."""

    def make(count: int) -> Path:
        folder = tmp_path / "images"
        folder.mkdir()
        for index in range(count):
            noise = np.random.default_rng(index).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
            cv2.imwrite(str(folder / f"{index:03d}.png"), noise)
        return folder

    return make
