from pathlib import Path

import pytest

from bench.peers.catalogue import PEERS
from bench.peers.clients import PeerError
from bench.peers.rig import Environment, environment


def _environment(folder: Path, maker: str = "exit 0") -> Environment:
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nfor last; do :; done\nmkdir -p "$last/bin"\ncp "$0" "$last/bin/python"\n{maker}\n')
    script.chmod(0o755)
    lock = folder / "some.lock"
    lock.write_text("library==1.2.3 \\\n    --hash=sha256:00\nother==4\n")
    return Environment(folder / "some", lock, script)


def test_the_error_for_a_missing_environment_says_how_to_make_it(tmp_path: Path) -> None:
    """The peer is skipped, and the reader of the table needs to know how to include it next time."""
    with pytest.raises(PeerError, match=r"no environment in .*some: python -m bench peers --prepare"):
        _environment(tmp_path).check()


def test_an_environment_of_another_lock_is_not_used(tmp_path: Path) -> None:
    """Its library versions differ from those in the table."""
    env = _environment(tmp_path)
    env.make(lambda _: None)
    env.check()
    env.lock.write_text("library==2\n")
    with pytest.raises(PeerError, match="half made, or of another lock"):
        env.check()


def test_the_error_of_a_failed_installation_quotes_the_last_line_and_names_the_log(tmp_path: Path) -> None:
    """pip prints hundreds of lines; the last one names the requirement that failed."""
    env = _environment(tmp_path, "echo resolving; echo 'ERROR: no such library'; exit 1")
    with pytest.raises(PeerError, match=r"some: ERROR: no such library \(all of it in .*some.log\)"):
        env.make(lambda _: None)
    assert "resolving" in env.log.read_text()
    with pytest.raises(PeerError):
        env.check()


def test_versions_are_read_from_the_lock(tmp_path: Path) -> None:
    """A measurement can only be repeated if the library version is known."""
    env = _environment(tmp_path)
    assert env.version("library") == "1.2.3"
    with pytest.raises(PeerError, match="names no absent"):
        env.version("absent")


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_has_a_lock_that_pins_all_requirements(name: str) -> None:
    """Without hashes, the package index could deliver other files under the same version."""
    found = environment(name)
    assert found.version(PEERS[name].library)
    pins = [line for line in found.lock.read_text().splitlines() if "==" in line]
    assert len(pins) > 5
    assert all(line.endswith("\\") for line in pins)
