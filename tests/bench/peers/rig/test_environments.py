from pathlib import Path

import pytest

from bench.peers.clients.client import PeerError
from bench.peers.rig.catalogue import PEERS
from bench.peers.rig.environments import Environment, environment


def _environment(folder: Path, maker: str = "exit 0") -> Environment:
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nfor last; do :; done\nmkdir -p "$last/bin"\ncp "$0" "$last/bin/python"\n{maker}\n')
    script.chmod(0o755)
    lock = folder / "some.lock"
    lock.write_text("library==1.2.3 \\\n    --hash=sha256:00\nother==4\n")
    return Environment(folder / "some", lock, script)


def test_one_that_is_not_there_says_how_to_make_it(tmp_path: Path) -> None:
    """It is skipped, and the reader of the table wants to have it next time."""
    with pytest.raises(PeerError, match=r"no environment in .*some: skylane bench peers --prepare"):
        _environment(tmp_path).check()


def test_one_of_another_lock_is_not_used(tmp_path: Path) -> None:
    """Its versions are not those that the table names."""
    made = _environment(tmp_path)
    made.make(lambda _: None)
    made.check()
    made.lock.write_text("library==2\n")
    with pytest.raises(PeerError, match="half made, or of another lock"):
        made.check()


def test_one_that_cannot_be_made_tells_the_last_word_and_where_all_of_it_is(tmp_path: Path) -> None:
    """pip says hundreds of lines; the last tells what it could not have."""
    made = _environment(tmp_path, "echo resolving; echo 'ERROR: no such library'; exit 1")
    with pytest.raises(PeerError, match=r"some: ERROR: no such library \(all of it in .*some.log\)"):
        made.make(lambda _: None)
    assert "resolving" in made.log.read_text()
    with pytest.raises(PeerError):
        made.check()


def test_versions_are_those_of_the_lock(tmp_path: Path) -> None:
    """A figure without the version that it was measured with cannot be repeated."""
    made = _environment(tmp_path)
    assert made.version("library") == "1.2.3"
    with pytest.raises(PeerError, match="names no absent"):
        made.version("absent")


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_has_a_lock_that_pins_all_of_it(name: str) -> None:
    """Without hashes what is installed is whatever an index gives out that day."""
    found = environment(name)
    assert found.version(PEERS[name].library)
    pins = [line for line in found.lock.read_text().splitlines() if "==" in line]
    assert len(pins) > 5
    assert all(line.endswith("\\") for line in pins)
