"""The Ray executor: the results of the local one, whatever happens to actors, nodes and the cluster."""

import multiprocessing
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ops.batch.executor import BagProgress
from ops.batch.settings import BatchSettings
from ops.batch.steps import BatchError
from shared.errors import SkylaneError
from shared.network.endpoint import is_loopback
from tests.ops.batch.rig import Watcher, contents, run, write_library
from tests.support.ray_cluster import ENVIRONMENT, RayCluster, ray_cluster

pipeline = pytest.importorskip("ops.batch.executors.ray_pipeline")

FRAMES = 24  # Of the shortest bag: more than a block of Ray Data.
BAGS = 4


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some bags."""
    return write_library(tmp_path_factory.mktemp("library"), BAGS, FRAMES)


@pytest.fixture(scope="module")
def expected(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files that the local executor writes."""
    out = tmp_path_factory.mktemp("expected")
    run(library, out)
    return contents(out)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes on this machine. The tests below damage them, each a bit more than the one before."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with ray_cluster() as running:
            yield running


def results(out: Path) -> dict[str, bytes]:
    """Returns the files of a batch, without the log of Ray."""
    files = contents(out)
    files.pop("ray.log")
    return files


def at_frame(number: int, act: Callable[[], object]) -> Watcher:
    """Returns a watcher that acts once, when as many frames are written."""
    seen = iter(range(1, 10**9))

    def on_frame(progress: BagProgress) -> None:
        del progress
        if next(seen) == number:
            act()

    return Watcher(on_frame)


def test_deaths_are_counted_by_frame() -> None:
    """A frame that kills every actor is given up, and an actor that is killed once costs no bag."""
    counter = pipeline.DeathCounter()
    bad, good = (0, 7), (0, 8)
    for actor in ("one", "two"):
        assert counter.begin(actor, good) == 0
        counter.begin(actor, bad)
        counter.restarted(actor)
    counter.restarted("three")  # It died before its first frame.
    assert counter.begin("one", bad) == 2
    assert counter.begin("two", good) == 0


def test_a_cluster_started_here_gives_the_same_files_and_ends(
    library: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """It listens on no other interface than the loopback one, and leaves neither processes nor files."""
    found: list[psutil.Process] = []
    hosts: list[str] = []

    def look() -> None:
        driver = next(each for each in multiprocessing.active_children() if each.name == "skylane-ray")
        found.extend(psutil.Process(driver.pid).children(recursive=True))
        listening = [each for process in found for each in process.net_connections("tcp") if each.status == "LISTEN"]
        hosts.extend(each.laddr.ip.removeprefix("::ffff:") for each in listening)

    result = run(library, tmp_path / "out", at_frame(1, look), executor="ray", processes=2)
    assert len(result.done) == BAGS
    assert results(tmp_path / "out") == expected
    assert hosts
    assert all(is_loopback(host) for host in hosts)
    assert psutil.wait_procs(found, timeout=60)[1] == []


def test_a_model_that_cannot_be_loaded_is_refused_once(cluster: RayCluster, library: Path, tmp_path: Path) -> None:
    """The message is that of the local executor, not a traceback of an actor."""
    with pytest.raises(BatchError, match="give a model of segmentation") as caught:
        run(library, tmp_path / "out", executor="ray", ray_address=cluster.address, model="car-tiny")
    assert "Traceback" not in str(caught.value)


def test_a_killed_actor_loses_nothing_and_a_broken_bag_fails_by_name(
    cluster: RayCluster, library: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """Ray starts the actor again and repeats what it had; the reason comes from the node that decoded the bag."""
    more = shutil.copytree(library, tmp_path / "library")
    (more / "broken.mcap").write_bytes(b"no bag")
    killed: list[int] = []

    def kill() -> None:
        actor = next(each for each in cluster.processes() if each.name().startswith("ray::MapWorker"))
        actor.kill()
        killed.append(actor.pid)

    watcher = at_frame(5, kill)
    result = run(more, tmp_path / "out", watcher, executor="ray", processes=None, ray_address=cluster.address)
    assert killed
    assert list(result.failed) == ["broken.mcap"]
    assert "broken.mcap" in result.failed["broken.mcap"]
    files, whole = (
        {name: data for name, data in each.items() if name.startswith("bags/")}
        for each in (results(tmp_path / "out"), expected)
    )
    assert files == whole


def test_a_killed_node_loses_nothing(
    cluster: RayCluster, library: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """The other node does again what the lost one had done or was doing."""
    watcher = at_frame(5, cluster.kill_second_node)
    result = run(library, tmp_path / "out", watcher, executor="ray", processes=None, ray_address=cluster.address)
    assert len(result.done) == BAGS
    assert results(tmp_path / "out") == expected


def test_a_cluster_that_goes_away_keeps_the_finished_bags(
    cluster: RayCluster, library: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """The command fails with the reason, and continues elsewhere."""
    out = tmp_path / "out"
    watcher = Watcher()
    ended = threading.Event()

    def end_after_a_bag(progress: BagProgress) -> None:
        del progress
        if watcher.outcomes and not ended.is_set():
            ended.set()
            cluster.end()

    watcher = Watcher(end_after_a_bag)
    with pytest.raises(BatchError, match=f"the Ray cluster at {cluster.address} went away"):
        run(library, out, watcher, executor="ray", processes=1, ray_address=cluster.address)
    done = [outcome.bag for outcome in watcher.outcomes]
    assert done
    result = run(library, out)
    assert result.finished == sorted(done)
    assert results(out) == expected


def test_an_address_without_a_cluster_is_refused(library: Path, tmp_path: Path) -> None:
    """Ray alone would try for minutes."""
    with pytest.raises(BatchError, match=r"at 127\.0\.0\.1:9 cannot be used"):
        run(library, tmp_path / "out", executor="ray", ray_address="127.0.0.1:9")
    with pytest.raises(SkylaneError, match="the port is missing"):
        run(library, tmp_path / "out", executor="ray", ray_address="auto")


@pytest.mark.parametrize(
    ("nodes", "settings", "expected_sizes"),
    [
        ([{"CPU": 4}], {}, (4, 4, 0.9, 0)),
        ([{"CPU": 3}, {"CPU": 2}, {}], {"threads": 2}, (2, 2, 1.8, 0)),
        ([{"CPU": 8}], {"processes": 2}, (2, 2, 0.9, 0)),
        ([{"CPU": 8, "GPU": 1}, {"CPU": 8, "GPU": 2}], {}, (16, 3, 0, 1)),
        ([{"CPU": 4, "GPU": 1}], {"device": "cpu"}, (4, 4, 0.9, 0)),
    ],
    ids=["one node", "threads", "processes", "GPUs", "GPUs unused"],
)
def test_pools_fill_the_cluster(
    nodes: list[dict[str, float]], settings: dict[str, Any], expected_sizes: tuple[float, ...], tmp_path: Path
) -> None:
    """An actor for each GPU, or on all cores with a share of them for decoding."""
    asked = BatchSettings.model_validate({"library": tmp_path, "out": tmp_path, "model": "road-tiny"} | settings)
    sizes = pipeline.pools(asked, nodes)
    assert (sizes.decoders, sizes.actors, sizes.actor_cpus, sizes.actor_gpus) == expected_sizes


@pytest.mark.parametrize(
    ("settings", "problem"), [({"device": "gpu:0"}, "no node .* has a GPU"), ({"threads": 4}, "has 4 cores")]
)
def test_a_cluster_that_is_too_small_is_refused(settings: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """Ray would wait for such a node for ever."""
    asked = BatchSettings.model_validate({"library": tmp_path, "out": tmp_path, "model": "road-tiny"} | settings)
    with pytest.raises(BatchError, match=problem):
        pipeline.pools(asked, [{"CPU": 2}, {"CPU": 3}])
