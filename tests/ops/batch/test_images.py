"""A batch decides about topics, bits and the order of bags as a vehicle does."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ops.batch.output.results import read_manifest, results_folder
from rosbag_tools.writer import BagWriter
from tests.ops.batch.rig import HEIGHT, WIDTH, Watcher, run


def write(path: Path, *images: tuple[str, Any, str]) -> None:
    """Writes a bag of images: topic, pixels and encoding."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with BagWriter(path) as bag:
        for index, (topic, pixels, encoding) in enumerate(images):
            bag.write_image(topic, pixels, encoding, 10**18 + index, 10**18 + index, "camera")


def test_distances_are_left_out_and_twelve_bits_are_scaled(tmp_path: Path) -> None:
    """The manifest of the bag says so; the masks are those of the same scene in 8 bits."""
    scene = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH), np.uint8)
    scene[:8] = 255
    scene[8:][scene[8:] > 200] = 0
    wide = scene.astype(np.uint16) << 4 | scene >> 4
    library = tmp_path / "library"
    write(library / "8.mcap", ("/cam/image_raw", scene, "bayer_rggb8"))
    write(
        library / "12.mcap",
        ("/cam/image_raw", wide, "BayerRG16"),
        ("/cam/aligned_depth_to_color/image_raw", wide, "16UC1"),
    )
    run(library, tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / "frames.parquet").to_pylist()
    assert [row["bag"] for row in rows] == ["8.mcap", "12.mcap"]
    shares = [{key: row[key] for key in row if key.startswith("share_")} for row in rows]
    assert shares[0] == pytest.approx(shares[1], abs=0.01)  # Demosaicing rounds 16-bit values more finely.
    manifest = read_manifest(results_folder(tmp_path / "out", "12.mcap"))
    assert manifest is not None
    assert "/cam/aligned_depth_to_color/image_raw is not taken for a camera" in manifest.notes[0]
    assert "12 of 16 bits" in manifest.notes[1]


def test_other_bits_or_encodings_do_a_bag_again(tmp_path: Path) -> None:
    """The results depend on both."""
    write(tmp_path / "library" / "a.mcap", ("/cam", np.zeros((HEIGHT, WIDTH), np.uint16), "odd"))
    assert "odd" in run(tmp_path / "library", tmp_path / "out").failed["a.mcap"]
    done: Any = {"encodings": ("mono16",)}
    assert run(tmp_path / "library", tmp_path / "out", **done).done == ["a.mcap"]
    assert run(tmp_path / "library", tmp_path / "out", **done).finished == ["a.mcap"]
    watcher = Watcher()
    run(tmp_path / "library", tmp_path / "out", watcher, bits="12", **done)
    assert "a.mcap" in watcher.planned.redone
