"""A mask of a batch is the one that a worker answers to a vehicle which sends the same bag without loss."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest

from cloud.models.loader import ModelLoader
from edge.sinks.image_sinks import PngSink
from shared.models.manifest import Placement
from shared.models.repository import Repository
from shared.stages import Stage
from tests.ops.batch.rig import CAMERAS, MODEL, MODELS, run, write_bag
from tests.pipeline.rig import Vehicle, memory_bus, serving


@pytest.mark.parametrize("demosaic", ["auto", "edge-aware"])
def test_masks_equal_those_of_vehicle_and_worker(tmp_path: Path, demosaic: Any) -> None:
    """Researchers compare a drive on the road with a batch over its bag."""
    bag = write_bag(tmp_path / "library" / "a.mcap", frames=4, cameras=CAMERAS)
    out = tmp_path / "out"
    run(bag.parent, out, demosaic=demosaic)
    loader = ModelLoader(Repository(MODELS), Placement(intra_threads=1, inter_threads=1))
    with loader.load(loader.find(MODEL)) as model, memory_bus() as bus, serving(lambda _: bus, model):
        sink = PngSink(tmp_path / "car", model.card)
        vehicle = Vehicle(bus, bag, tmp_path / "car", sinks=(sink,), model=MODEL, demosaic=demosaic, codec="raw")
        rows = vehicle.play()
    assert [row["outcome"] for row in rows] == ["answered"] * 8
    assert all(int(row[f"t_{Stage.INFERRED}_ns"]) for row in rows)
    for row in pq.read_table(out / "frames.parquet").to_pylist():
        ours = cv2.imread(str(out / row["mask"]), cv2.IMREAD_UNCHANGED)
        theirs = cv2.imread(str(tmp_path / "car" / Path(row["mask"]).relative_to("bags/a.mcap")), cv2.IMREAD_UNCHANGED)
        np.testing.assert_array_equal(ours, theirs)
