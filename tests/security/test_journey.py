"""A complete run at the secured broker: the roles must allow all that vehicle, worker and operator need."""

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from cloud.control_cli import control
from edge.config import EdgeConfig
from edge.run import run
from ops.broker.broker import Broker
from shared.imaging.opencv import cv2
from shared.mqtt.broker_options import BrokerOptions
from shared.runlog.latency_log import Outcome, read_rows
from tests.pipeline.rig import serving
from tests.support.tiny_model import HEIGHT, WIDTH, model

pytestmark = pytest.mark.mosquitto
FRAMES = 30


def test_all_roles_can_do_their_work(secured: Broker, certs: Path, tmp_path: Path) -> None:
    """Frames, masks, statuses, clock probes and control requests pass with the certificates of each role."""
    images = tmp_path / "images"
    images.mkdir()
    for index in range(FRAMES):
        cv2.imwrite(str(images / f"{index:03d}.png"), np.full((HEIGHT, WIDTH, 3), index, np.uint8))
    connection = BrokerOptions(secured.url, certs=certs)
    with serving(
        lambda node: connection.open(
            "skylane-worker-test", None, name="worker-1", on_connected=node.announce, on_fault=node.threads.fault
        ),
        model(),
    ):
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
        assert run(str(images), config, Console(file=StringIO())) == 0
        rows = list(read_rows(tmp_path / "run"))
        flags = ["--broker", secured.url, "--certs", str(certs), "--operator", "anna", "--json"]
        result = CliRunner().invoke(control, [str(rows[0]["worker"]), "list", *flags])
    assert [row["outcome"] for row in rows] == [Outcome.ANSWERED] * FRAMES
    assert all(row["clock_offset_ms"] for row in rows)  # Clock probes were echoed.
    assert result.exit_code == 0, result.output
    assert [entry["model"] for entry in json.loads(result.stdout)["models"]] == ["tiny"]
