from pathlib import Path
from typing import Any, cast

import pytest

from shared.inference.table import ENGINES, EngineEntry
from shared.messages.frame import Status
from shared.models.manifest import Placement
from tests.cloud.isolation import nasty
from tests.support.batching import WAIT_S, BatcherRig


def test_frames_that_break_the_model_fail_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is tried twice, then refused as `failed`; the other frames of its batch get their own masks."""
    monkeypatch.setitem(ENGINES, "nasty", EngineEntry("tests.cloud.isolation.nasty:Nasty", "cloud", ("frozen_graph",)))
    engine = nasty.Watched(Path("model"), nasty.manifest(), Placement(), engine="nasty", limits=nasty.PATIENT)
    engine.infer(nasty.pictures(0))
    rig = BatcherRig(cast("Any", engine), max_size=3, decoders=6)
    rig.put(*(rig.request(each) for each in (1, nasty.RAISE, 2, 3, nasty.EXIT, 4)))
    rig.start()
    rig.batcher.close()
    rig.threads.join(3 * WAIT_S)
    engine.close()
    assert rig.numbers() == [1, 2, 3, 4]
    assert [(number, status) for number, status, _ in rig.answers()] == [
        (nasty.RAISE, Status.FAILED), (nasty.EXIT, Status.FAILED)
    ]  # fmt: skip
    assert all(reason.startswith("poison: ") for *_, reason in rig.answers())
