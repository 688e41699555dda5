from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
import pytest

from bench.peers.clients import Job
from bench.peers.function import Function, NotAPictureError, picture_of
from bench.peers.workload import CODECS, by_codec, jobs, write_graph
from ops.processes.playback import PlaybackSettings
from rosbag_tools.drive.recording import DrivePlan as Recording
from rosbag_tools.drive.recording import record
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.image_codecs import ImageLimits
from shared.imaging.opencv import cv2
from shared.models.repository import default_root

MODEL, CLASSIFIER = "road-small", "road-weather"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Sequence[Job]]:
    """One job per codec, with the mask of the direct call."""
    bag = tmp_path_factory.mktemp("bag") / "drive"
    record(bag, Recording(seed=7, frames=1, width=968, height=608))
    return jobs(by_codec(PlaybackSettings(bag, default_root(), MODEL, frames=1)))


@pytest.fixture(scope="module")
def function(tmp_path_factory: pytest.TempPathFactory) -> Function:
    """The function, loaded in the same way as in a peer's server."""
    path = tmp_path_factory.mktemp("graph") / "graph.pb"
    write_graph(default_root(), MODEL, path)
    return Function(path)


@pytest.mark.parametrize("codec", CODECS)
def test_the_peers_serve_the_same_function_as_our_engine(
    codec: str, function: Function, work: Mapping[str, Sequence[Job]]
) -> None:
    """Servers that run different functions cannot be compared by their speed."""
    (job,) = work[codec]
    mask, took_ns = function.answer(job.data)
    assert mask.dtype == np.uint8
    assert np.array_equal(mask, job.mask)
    assert len(np.unique(mask)) > 1, "a mask of one class would prove nothing"
    assert took_ns > 0


def test_a_peer_receives_a_frame_with_the_bytes_that_a_worker_receives(work: Mapping[str, Sequence[Job]]) -> None:
    """Peers and Skylane must receive the same bytes to be comparable."""
    assert len(work["raw"][0].data) == prod(work["raw"][0].frame.shape) == 608 * 968 * 3
    assert work["jpeg"][0].data[:2] == b"\xff\xd8"


@pytest.mark.parametrize(("data", "found"), [(b"", "no picture"), (b"\xff\xd8 broken", "no picture")])
def test_data_without_a_valid_image_is_refused(data: bytes, found: str) -> None:
    """A server that returns a mask for invalid data would appear fast."""
    with pytest.raises(NotAPictureError, match=found):
        picture_of(data, (4, 6, 3))


@pytest.mark.parametrize("size", [(80, 90), (40, 50), (20, 30), (80, 30), (20, 90), (40, 90)])
def test_an_image_of_another_size_is_resized_in_the_same_way_as_in_the_worker(size: tuple[int, int]) -> None:
    """Other pixels would give the model another input, and every score would be wrong."""
    height, width = size
    noise = np.random.default_rng(7).integers(0, 256, (height, width, 3), np.uint8)
    image = np.asarray(cv2.GaussianBlur(noise, (5, 5), 0), np.uint8)
    data = bytes(image_codecs.encode(image, Layout.RGB8, "jpeg", 85))
    sent = image_codecs.decode(data, "jpeg", Layout.RGB8, image.shape, ImageLimits(), Layout.RGB8)
    stretched = geometry.apply(sent, geometry.plan(Resize.STRETCH, height, width, 40, 50))
    assert np.array_equal(picture_of(data, (40, 50, 3)), stretched)


def test_the_scores_of_a_classifier_are_compared_in_place_of_a_mask(tmp_path: Path) -> None:
    """All bits must agree. The comparison of 2022 measured classifiers."""
    record(tmp_path / "drive", Recording(seed=7, frames=1, width=484, height=304))
    jobs_by_codec = jobs(by_codec(PlaybackSettings(tmp_path / "drive", default_root(), CLASSIFIER, frames=1)))
    write_graph(default_root(), CLASSIFIER, tmp_path / "graph.pb")
    function = Function(tmp_path / "graph.pb")
    for (job,) in jobs_by_codec.values():
        scores, _ = function.answer(job.data)
        assert np.array_equal(scores, job.mask)
        assert job.mask.view(np.float32).sum() == pytest.approx(1.0, abs=1e-5)


def test_a_model_of_an_unsupported_task_is_refused(tmp_path: Path) -> None:
    """The error names the model and the supported tasks before a server is started."""
    with pytest.raises(SkylaneError, match="road-objects is a model for detection: choose one with a single"):
        write_graph(default_root(), "road-objects", tmp_path / "graph.pb")
