from pathlib import Path

import pytest

from bench.baselines.gateway_baselines import DetectionSender
from cloud.models.loader import ModelLoader
from ops.processes.child import BenchError
from ops.processes.playback import first_frames
from shared.models.repository import Repository
from tests.support.gateway import open_gateway


def test_files_are_uploaded_one_after_the_other(models: Path, bag: Path) -> None:
    """A baseline that is rejected quickly would look fast."""
    with ModelLoader(Repository(models)).open("tiny") as model, open_gateway(model) as doors:
        sender = DetectionSender(doors.http, "tiny", list(first_frames(bag, 2)))
        for frame in (0, 1, 2):  # The third file is the first again.
            times = sender.send({"frame": frame})
            assert 0 < times["inferred"] < times["total"]
        with pytest.raises(BenchError, match=r"404.*absent"):
            DetectionSender(doors.http, "absent", list(first_frames(bag, 1))).send({"frame": 0})
    assert doors.node.counts["answered"] == 3  # A frame is counted after its reply.
