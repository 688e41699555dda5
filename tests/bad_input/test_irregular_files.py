"""Paths from outside that lead to no regular file: each is refused with its name, and none blocks its reader."""

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from analysis.logs.run_log import load_run
from cloud.gateway.common.auth import Authenticator
from edge.presenting.fusion_table import read_fusion
from edge.sources.video import VideoSource
from edge.transports.channel import WorkerCredentials
from ops.broker.mosquitto import first_listener
from rosbag_tools.reading.bag import Bag
from shared.config import load_mapping
from shared.errors import SkylaneError
from shared.imaging.image_files import read_image_file
from shared.imaging.labels import read_labels
from shared.network.address import Address, Certificates
from shared.network.tls import load_certificates
from shared.reuse.tuning import read_tuning
from shared.runlog.latency_log import CSV_NAME, JOURNAL_NAME, read_header, read_journal, read_rows
from shared.runlog.presented_log import PRESENTED_NAME, read_presented
from shared.runlog.repair import repair
from shared.runlog.run_manifest import MANIFEST_NAME, read_manifest


def _listed(read: Callable[[Path], Iterator[object]]) -> Callable[[Path], object]:
    return lambda path: list(read(path.parent))


def _in_folder(read: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda path: read(path.parent)


def _certificates(path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_certificates(context, Address("broker", 8883), Certificates(authority=str(path)))


_READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "configuration": ("settings.yaml", load_mapping),
    "tuning": ("tuning.yaml", read_tuning),
    "labels": ("labels.yaml", read_labels),
    "fusion": ("fusion.npz", read_fusion),
    "image": ("image.png", read_image_file),
    "video": ("drive.mp4", VideoSource),
    "bag": ("drive.mcap", lambda path: closing(Bag(path)).__enter__()),
    "tokens": ("tokens", Authenticator.from_file),
    "worker-authority": ("ca.crt", WorkerCredentials.read),
    "broker-authority": ("ca.crt", _certificates),
    "mosquitto": ("mosquitto.conf", first_listener),
    "rows": (CSV_NAME, _listed(read_rows)),
    "header": (CSV_NAME, _in_folder(read_header)),
    "journal-to-repair": (JOURNAL_NAME, _in_folder(repair)),
    "outputs": (PRESENTED_NAME, _listed(read_presented)),
    "manifest": (MANIFEST_NAME, _in_folder(read_manifest)),
    "report": (CSV_NAME, _in_folder(load_run)),
}


@pytest.mark.parametrize("reader", _READERS)
@pytest.mark.parametrize("kind", ["FIFO", "circle"])
def test_a_path_to_no_regular_file_is_refused(reader: str, kind: str, tmp_path: Path) -> None:
    """Somebody else made the folder; a FIFO without a writer would block the command for ever."""
    name, read = _READERS[reader]
    path = tmp_path / name
    if kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(path.name)
    with pytest.raises(SkylaneError) as raised:
        read(path)
    assert name in str(raised.value)


def test_the_journal_of_a_run_beside_a_good_log_is_not_waited_for(tmp_path: Path) -> None:
    """`report --repair` opens both."""
    os.mkfifo(tmp_path / JOURNAL_NAME)
    (tmp_path / CSV_NAME).write_text("session,sequence\n", encoding="utf-8")
    with pytest.raises(SkylaneError, match="it is a FIFO"):
        list(read_journal(tmp_path))
