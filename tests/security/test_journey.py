"""The whole journey behind the secured broker: what the roles leave shut must be nothing that our own nodes need."""

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from cloud.control_cli import control
from edge import cli
from edge.config import EdgeConfig
from shared.broker.broker import Broker
from shared.imaging.opencv import cv2
from shared.network.broker_options import Connection
from shared.runlog.latency_log import Outcome, read_rows
from tests.pipeline.rig import serving
from tests.support.tiny_model import HEIGHT, WIDTH, model

pytestmark = pytest.mark.mosquitto
FRAMES = 30


def test_a_drive_is_answered_and_an_operator_looks_on(secured: Broker, certs: Path, tmp_path: Path) -> None:
    """Frames, masks, statuses, probes and echoes, control and replies: all of them by certificates of their role."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for index in range(FRAMES):
        cv2.imwrite(str(pictures / f"{index:03d}.png"), np.full((HEIGHT, WIDTH, 3), index, np.uint8))
    connection = Connection(secured.url, certs=certs)
    with serving(
        lambda node: connection.open(
            "skylane-worker-test", None, name="worker-1", on_connected=node.announce, on_fault=node.fault
        ),
        model(),
    ) as worker:
        config = EdgeConfig(
            broker=secured.url,
            certs=certs,
            vehicle="car-1",
            model="tiny",
            codec="raw",
            closed_loop=True,
            sinks=(),
            out=tmp_path / "run",
        )
        assert cli.run(str(pictures), config, Console(file=StringIO())) == 0
        name = worker._settings.worker
        flags = ["--broker", secured.url, "--certs", str(certs), "--operator", "anna", "--json"]
        told = CliRunner().invoke(control, [name, "list", *flags])
    rows = list(read_rows(tmp_path / "run"))
    assert [row["outcome"] for row in rows] == [Outcome.ANSWERED] * FRAMES
    assert all(row["clock_offset_ms"] for row in rows)  # Probes went out and echoes came back.
    assert told.exit_code == 0, told.output
    assert [entry["model"] for entry in json.loads(told.stdout)["models"]] == ["tiny"]
