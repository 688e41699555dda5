"""The live view: what reaches the viewers, and that a viewer that dies, hangs or comes late costs the run nothing."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from edge.config import EdgeConfig
from edge.ledger import RunCounts
from edge.sinks.sink import PresentedTick
from edge.view.live_view import LiveView
from edge.view.viewer import ViewError, bytes_per_s
from shared import clock
from shared.errors import SkylaneError
from shared.runlog.latency_log import LatencyRow, Outcome
from shared.runlog.presented_log import OutputOrigin
from shared.stages import CLOUD_STAGES, EDGE_STAGES
from tests.edge.samples import CARD
from tests.edge.view.watching import (
    WAIT_S,
    FoxgloveReader,
    RerunReader,
    card_with,
    listening,
    processes,
    read_rrd,
    record,
    show,
    watched,
)
from tests.support.waiting import until

LogLines = Callable[[], list[dict[str, Any]]]


def row(sequence: int = 0) -> LatencyRow:
    """Returns the row of an answered frame."""
    now_ns = clock.now_ns()
    edge = {stage: now_ns + 10**6 * index for index, stage in enumerate(EDGE_STAGES)}
    cloud = {stage: now_ns + 10**5 * index for index, stage in enumerate(CLOUD_STAGES)}
    return LatencyRow("car", "/left", "s1", sequence, Outcome.ANSWERED, edge_times=edge, cloud_times=cloud)


def tick(sequence: int) -> PresentedTick:
    """Returns an output that is 80 ms old."""
    made = record(sequence)
    result = np.full((8, 12), 1, np.uint8)
    return PresentedTick(
        "/left", "s1", sequence, OutputOrigin.WARPED, "", sequence, 7, clock.now_ns(), clock.now_ns(),
        age_ns=80_000_000, result=result, image=made.image, geometry=made.geometry,  # type: ignore[arg-type]
    )  # fmt: skip


def missing(sequence: int) -> PresentedTick:
    """Returns a tick of another camera without an output."""
    facts = {"origin": OutputOrigin.NONE, "reason": "result too old", "result": None, "age_ns": None}
    return replace(tick(sequence), camera="/right", **facts)  # type: ignore[arg-type]


def everything(view: LiveView) -> Callable[[], None]:
    """Returns a function that shows the next frame, output and row."""
    numbers = count()
    view.counts = lambda: RunCounts(9, 2, {Outcome.ANSWERED: 7}, {}, None)

    def act() -> None:
        number = next(numbers)
        made = record(number)
        made.row = row(number)
        show(view, made)
        view.presented(tick(number))
        view.presented(missing(number))

    return act


def test_rerun_shows_frames_masks_outputs_and_latency(tmp_path: Path, log_lines: LogLines) -> None:
    """Rerun's own program receives them, also what was shown before it came, and the classes by their names."""
    with watched("rerun", log_lines, card_with("road", "tree")) as (view, address):
        assert listening() == {"127.0.0.1"}  # Camera pictures are private.
        act = everything(view)
        act()
        with RerunReader(address, tmp_path / "seen.rrd") as reader:

            def grown() -> bool:
                act()
                time.sleep(0.05)
                return reader.size > 200_000

            reader.wait_for(grown)
    seen = read_rrd(tmp_path / "seen.rrd")
    expected = {
        "/left/result/mask",
        "/left/presented",
        "/right/presented",
        "/latency",
        "/age/result",
        "/frames",
        "/in_flight",
        "/about",
    }
    assert seen.keys() >= expected
    (classes,) = seen["/"]
    assert [
        (each["class_description"]["info"]["id"], each["class_description"]["info"]["label"])
        for each in classes["AnnotationContext:context"][0]
    ] == [
        (0, "road"),
        (1, "tree"),
        (255, "not seen"),
    ]
    assert {bytes(row["SegmentationImage:buffer"][0]) for row in seen["/left/result/mask"]} == {bytes([1] * 96)}


def test_foxglove_shows_frames_masks_outputs_and_latency(log_lines: LogLines) -> None:
    """A client of its protocol receives them."""
    expected = {"/left/result/image", "/left/result/mask", "/left/result/overlay", "/left/presented/image", "/latency"}
    expected |= {"/right/presented/image", "/right/presented/overlay"}  # The image alone, as there is no output.
    with watched("foxglove", log_lines) as (view, address):
        assert listening() == {"127.0.0.1"}
        reader = FoxgloveReader(address)
        reader.read_until(lambda it: it.topics() >= expected | {"/frames", "/age"}, everything(view))


@pytest.mark.parametrize(
    ("viewer", "index", "number"),
    [("rerun", 0, signal.SIGSTOP), ("rerun", 1, signal.SIGKILL), ("foxglove", 0, signal.SIGKILL)],
    ids=["Python hangs", "Rerun's server dies", "Foxglove's dies"],
)
def test_a_viewer_that_dies_or_hangs_delays_nothing(
    viewer: str, index: int, number: signal.Signals, log_lines: LogLines
) -> None:
    """One of its processes is killed or stopped; showing 300 large frames then takes no time and no memory."""
    with watched(viewer, log_lines) as (view, _):
        show(view, record(0))
        processes()[index].send_signal(number)
        before = psutil.Process().memory_info().rss
        frame = record(1, 2000, 2000)
        for _ in range(300):
            show(view, frame)
        assert psutil.Process().memory_info().rss - before < 200 << 20
        if number is signal.SIGKILL:
            until(lambda: [line for line in log_lines() if "viewer ended" in line["event"]] != [])


def test_the_processes_end_with_a_vehicle_that_is_killed() -> None:
    """They would keep their ports, and show the picture of a run that is over."""
    script = (
        "import time\nfrom edge.config import EdgeConfig\nfrom edge.view.live_view import LiveView\n"
        "from tests.edge.samples import CARD\n"
        "with LiveView(EdgeConfig(view='rerun'), CARD):\n    print('open', flush=True)\n    time.sleep(600)\n"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=root) as vehicle:
        assert vehicle.stdout is not None
        assert vehicle.stdout.readline() == b"open\n"
        started = psutil.Process(vehicle.pid).children(recursive=True)
        assert len(started) == 2
        vehicle.kill()
    _, alive = psutil.wait_procs(started, WAIT_S)
    assert alive == []


def test_two_runs_have_addresses_of_their_own(log_lines: LogLines) -> None:
    """The second one would fail, or show the first. A name of this machine is a host."""
    with watched("rerun", log_lines) as (_, first):
        with LiveView(EdgeConfig(view="rerun", view_host="localhost"), CARD):
            addresses = [line["address"] for line in log_lines() if line["event"] == "view ready"]
        assert len({first, *addresses}) == 2


@pytest.mark.parametrize(
    ("text", "rate"), [("2Mbit", 250_000), ("500kbit", 62_500), ("1.5 Mbit/s", 187_500), ("1Gbit", 125_000_000)]
)
def test_rates(text: str, rate: float) -> None:
    """They are written as `tc` writes them."""
    assert bytes_per_s(text) == rate


@pytest.mark.parametrize(
    "text",
    ["", "2", "2MB", "Mbit", "-2Mbit", "99kbit", "0Mbit", "nanMbit", "1e3Mbit", "2 Mbit\x1b[31m", "٢Mbit", "2mbit"],
)
def test_other_rates_are_refused_with_an_example(text: str) -> None:
    """A rate of bytes would be eight times as much."""
    with pytest.raises(ViewError, match="such as 500kbit or 2Mbit"):
        bytes_per_s(text)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"view_limit": "2Mbit"}, "nothing is shown: add `view`"),
        ({"view_host": "0.0.0.0"}, "nothing is shown"),
        ({"view": "rerun", "view_host": "0.0.0.0"}, "whole network.*ssh -L"),
        ({"view": "rerun", "view_host": "192.168.1.7"}, "whole network.*ssh -L"),
        ({"view": "rerun", "view_host": "::"}, "whole network"),
        ({"view": "foxglove", "view_host": "0.0.0.0"}, "whole network.*view_tls_cert"),
        ({"view": "foxglove", "view_host": "car.example"}, "whole network"),
        ({"view": "rerun", "view_tls_cert": __file__, "view_tls_key": __file__}, "no TLS"),
        ({"view": "foxglove", "view_tls_cert": __file__}, "needs its key"),
        ({"view": "foxglove", "view_tls_key": __file__}, "needs its key"),
        ({"view": "rviz"}, "rviz"),
        ({"view": "rerun", "view_limit": "fast"}, "such as"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(options: dict[str, Any], problem: str) -> None:
    """Before anything is opened."""
    with pytest.raises(ValueError, match=f"(?s){problem}"):
        EdgeConfig(**options)


def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    """The reason of Foxglove's server reaches the user."""
    (tmp_path / "cert.pem").write_text("no certificate")
    config = EdgeConfig(view="foxglove", view_tls_cert=tmp_path / "cert.pem", view_tls_key=tmp_path / "cert.pem")
    with pytest.raises(SkylaneError, match="cannot listen"), LiveView(config, CARD):
        pass


def test_an_address_of_another_machine_is_refused() -> None:
    """It cannot be listened on."""
    config = EdgeConfig(view="rerun", view_host="127.0.0.1").model_copy(update={"view_host": "192.0.2.1"})
    with pytest.raises(SkylaneError, match=r"192\.0\.2\.1"), LiveView(config, CARD):
        pass


@pytest.mark.parametrize("viewer", ["rerun", "foxglove"])
def test_a_host_without_an_ipv4_address_is_refused(viewer: str) -> None:
    """The servers listen on one."""
    with pytest.raises(ViewError, match=r"'::1' has no IPv4 address.*127\.0\.0\.1"):
        LiveView(EdgeConfig(view=viewer, view_host="::1"), CARD).__enter__()


def test_names_from_the_wire_are_text_in_the_viewers(log_lines: LogLines) -> None:
    """A camera is named by its bag, and classes by a worker's card: neither makes a path, a topic or markup."""
    with watched("foxglove", log_lines, card_with("<b>road</b>", "[x](http://evil.example)")) as (view, address):
        reader = FoxgloveReader(address)
        numbers = count()
        nasty = "/../../<script>\x1b[2J"
        reader.read_until(lambda it: bool(it.messages), lambda: show(view, record(next(numbers), camera=nasty)))
    assert all(topic.isprintable() and ".." not in topic and "<" not in topic for topic in reader.topics())
