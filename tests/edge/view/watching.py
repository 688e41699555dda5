"""A live view that a test feeds, and the readers of both viewers."""

import asyncio
import json
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import numpy as np
import psutil
import rerun_cli
import websockets
from rerun.chunk import RrdReader

from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.view.live_view import LiveView
from ops.processes.child import ChildProcess
from shared import clock
from shared.imaging.geometry import Resize, plan
from shared.messages.model_card import ModelCard
from shared.messages.results import ModelResult
from shared.network.endpoint import free_port
from shared.runlog.latency_log import Outcome
from tests.edge.samples import CARD, make_record

WAIT_S = 60.0
RERUN = Path(rerun_cli.__file__).with_name("rerun")


def record(sequence: int, height: int = 8, width: int = 12, camera: str = "/left") -> FrameRecord:
    """Makes the record of a prepared frame, a grey image."""
    made = make_record(sequence, clock.now_ns(), camera)
    made.image = np.full((height, width, 3), sequence % 256, np.uint8)
    made.geometry = plan(Resize.CROP, height, width, height, width)
    return made


def show(view: LiveView, made: FrameRecord, class_id: int = 1) -> None:
    """Shows a frame with a mask of one class."""
    assert made.image is not None
    mask = np.full(made.image.shape[:2], class_id, np.uint8)
    made.row.outcome = Outcome.ANSWERED
    view.ended(made, ModelResult(mask, "1", "engine"))


@contextmanager
def watched(
    viewer: str, log_lines: Callable[[], list[dict[str, Any]]], card: ModelCard = CARD, **options: Any
) -> Iterator[tuple[LiveView, str]]:
    """Yields a view and its address; no process is left behind afterwards."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with LiveView(EdgeConfig(view=viewer, **options), card) as view:
        (line,) = [line for line in log_lines() if line["event"] == "view ready"][-1:]
        yield view, line["address"]
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert [child for child in left if child.status() != psutil.STATUS_ZOMBIE] == []


def processes() -> list[psutil.Process]:
    """Returns the processes of the views of this process: Python's, and those that it started."""
    (root,) = [child for child in psutil.Process().children() if "edge.view.view_process" in " ".join(child.cmdline())]
    return [root, *root.children(recursive=True)]


def listening() -> set[str]:
    """Returns the addresses on which the views of this process listen."""
    connections = (each for process in processes() for each in process.net_connections(kind="inet"))
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


class RerunReader:
    """Rerun's own program, which saves what a viewer receives."""

    def __init__(self, address: str, path: Path) -> None:
        (source,) = parse_qs(urlsplit(address).query)["url"]
        self._path = path
        command = [str(RERUN), "--bind", "127.0.0.1", "--port", str(free_port()), "--save", str(path), source]
        self._process = ChildProcess(command, environment={"XDG_CONFIG_HOME": str(path.parent)})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate(10.0)

    @property
    def size(self) -> int:
        """How many bytes it has saved."""
        return self._path.stat().st_size if self._path.exists() else 0

    def wait_until_quiet(self) -> None:
        """Waits until it has saved all that was there when it came."""
        size = -1
        while size != self.size:
            size = self.size
            time.sleep(0.5)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition is true."""
        assert self._process.wait_until(condition, WAIT_S), self._process.output


def read_rrd(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Reads a file by Rerun's reader: by entity the values of each row, by component; static ones, too."""
    found: dict[str, list[dict[str, Any]]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # What is saved from a stream has no index.
        for chunk in RrdReader(path).stream():
            columns = chunk.to_record_batch().to_pydict()
            rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            found.setdefault(str(chunk.entity_path), []).extend(rows)
    return found


class FoxgloveReader:
    """A client of Foxglove's protocol that subscribes to all topics."""

    def __init__(self, address: str) -> None:
        self.messages: list[tuple[str, int, bytes]] = []  # Topic, time and data.
        self.received_ns: list[int] = []
        self._address = address

    def read_until(self, condition: Callable[["FoxgloveReader"], bool], act: Callable[[], None] = lambda: None) -> None:
        """Reads until a condition is true, and calls `act` ten times per second beside it."""
        asyncio.run(asyncio.wait_for(self._read(condition, act), WAIT_S))

    async def _read(self, condition: Callable[["FoxgloveReader"], bool], act: Callable[[], None]) -> None:
        async with websockets.connect(self._address, subprotocols=["foxglove.sdk.v1"], max_size=None) as socket:  # type: ignore[list-item]
            topics: dict[int, str] = {}
            while not condition(self):
                act()
                try:
                    async with asyncio.timeout(0.1):
                        message = await socket.recv()
                except TimeoutError:
                    continue
                if isinstance(message, str):
                    fields = json.loads(message)
                    new = fields.get("channels", []) if fields["op"] == "advertise" else []
                    topics |= {channel["id"]: channel["topic"] for channel in new}
                    subscriptions = [{"id": channel["id"], "channelId": channel["id"]} for channel in new]
                    if new:
                        await socket.send(json.dumps({"op": "subscribe", "subscriptions": subscriptions}))
                elif message[0] == 1:  # Message data: subscription, time, payload.
                    subscription, time_ns = struct.unpack_from("<IQ", message, 1)
                    self.messages.append((topics[subscription], time_ns, message[13:]))
                    self.received_ns.append(clock.now_ns())

    def topics(self) -> set[str]:
        """Returns the topics of the messages so far."""
        return {topic for topic, *_ in self.messages}


def card_with(*names: str) -> ModelCard:
    """Returns the card of a model with these classes."""
    labels = replace(CARD.labels, names=names, colours=tuple((40 * i, 255 - 40 * i, 9) for i in range(len(names))))
    return replace(CARD, labels=labels)
