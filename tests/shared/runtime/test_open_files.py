"""How many connections the servers of a process may hold below its limit of open files."""

import resource
import subprocess
import sys

import pytest

from shared.runtime.open_files import OpenFilesError, connection_limits


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (128, {"http": 32, "grpc": 32}),
        (256, {"http": 96, "grpc": 96}),
        (1024, {"http": 448, "grpc": 448}),
        (16_384, {"http": 768, "grpc": 4096}),
    ],
)
def test_the_connections_follow_the_limit_of_files(files: int, expected: dict[str, int]) -> None:
    """The node itself keeps 64 files at least, and an eighth of many."""
    assert connection_limits({"http": 768, "grpc": 4096}, files) == expected
    assert sum(expected.values()) <= files - max(64, files // 8)


def test_what_a_small_server_leaves_is_for_the_others() -> None:
    """A worker with few calls has room for more gRPC connections."""
    assert connection_limits({"grpc": 4096, "http": 6}, 256) == {"http": 6, "grpc": 186}
    assert connection_limits({}, 64) == {}


@pytest.mark.parametrize("files", [32, 64, 67])
def test_too_few_files_are_an_error_that_says_how_many_it_takes(files: int) -> None:
    """Not a server that accepts nobody."""
    with pytest.raises(OpenFilesError, match=rf"may open {files} files, too few .* allow at least 72, better 1024"):
        connection_limits({"http": 768}, files)
    assert connection_limits({"http": 768}, 72) == {"http": 8}


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    """Shells and services start with a soft limit that is lower."""
    code = "from shared.runtime.open_files import raise_file_limit as f; print(f(), f())"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 300))

    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=limit,
    )
    assert ended.stdout.split() == ["300", "300"]
