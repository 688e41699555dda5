"""The natural order of names."""

import itertools
from pathlib import PurePosixPath

import pytest

from shared.files import natural_key, natural_path_key


@pytest.mark.parametrize(
    "names",
    [
        ["frame_1", "frame_2", "frame_10", "frame_11"],
        ["1", "1a", "1b2", "1b10", "2"],
        ["A9", "a10", "B1"],
        ["a01", "a1", "a2"],
        ["x" + "1" * 5000, "x" + "2" * 5000, "x" + "1" * 5001],
        ["", "0", "a", "²", "³1"],
        ["\udcff1", "\udcff10"],
    ],
    ids=["numbers", "inner numbers", "case", "leading zeros", "long numbers", "digits of other scripts", "not UTF-8"],
)
def test_names_are_sorted_by_their_numbers(names: list[str]) -> None:
    """The order is the same one from whichever order the file system lists the files in."""
    for shuffled in itertools.islice(itertools.permutations(names), 50):
        assert sorted(shuffled, key=natural_key) == names


def test_paths_are_sorted_folder_by_folder() -> None:
    """The tenth drive follows the second one, with all its files."""
    paths = [PurePosixPath(path) for path in ("drive10/a1", "drive2/b", "drive2/a10")]
    assert sorted(paths, key=natural_path_key) == paths[::-1]
