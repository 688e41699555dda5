"""Bags of a library whose files repeat each other, or contradict what the bag states about itself."""

import json
import shutil
from pathlib import Path

from backports import zstd

from ops.batch.library import scan
from tests.ops.batch.rig import run, write_bag


def test_a_file_beside_its_compressed_or_original_copy_is_one_bag(tmp_path: Path) -> None:
    """Every frame would be in the table twice."""
    data = next(write_bag(tmp_path / "writing").glob("*.mcap"))
    library = tmp_path / "library"
    library.mkdir()
    for name in ("rec_0.mcap", "alone_0.mcap"):
        shutil.copy(data, library / name)
    (library / "rec_0.mcap.zstd").write_bytes(zstd.compress(data.read_bytes()))
    (library / "alone_0.mcap").rename(library / "alone_0.mcap.zstd")
    for name in ("drive.bag", "drive.orig.bag", "other.orig.bag"):
        write_bag(library / name)
    found = scan(library, tmp_path / "out")
    assert [bag.name for bag in found.bags] == ["alone_0.mcap.zstd", "drive.bag", "other.orig.bag", "rec_0.mcap"]
    assert found.ignored == ("drive.orig.bag", "rec_0.mcap.zstd")


def test_numbered_ros1_bags_of_a_library_stay_single_bags(tmp_path: Path) -> None:
    """Numbers are also the names of independent drives."""
    for number in range(3):
        write_bag(tmp_path / f"drive_{number}.bag")
    assert [bag.name for bag in scan(tmp_path, tmp_path / "out").bags] == [f"drive_{n}.bag" for n in range(3)]


def test_false_statements_of_a_bag_are_in_the_result(tmp_path: Path) -> None:
    """A batch over a hundred bags must not hide that one of them is incomplete, in this run or the next."""
    bag = write_bag(tmp_path / "library" / "b")
    metadata = bag / "metadata.yaml"
    metadata.write_text(metadata.read_text(encoding="utf-8").replace("message_count: 3", "message_count: 7"))
    for _ in range(2):
        result = run(tmp_path / "library", tmp_path / "out")
        assert result.failed == {}
        assert result.frames == 3
        assert "metadata.yaml counts 7 messages, and the data files have 3" in result.false_claims["b"]
    record = json.loads((tmp_path / "out" / "batch.json").read_text(encoding="utf-8"))
    assert record["false_claims"] == result.false_claims
