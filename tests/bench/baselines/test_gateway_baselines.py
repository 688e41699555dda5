from pathlib import Path

import numpy as np
import pytest

from bench.baselines.gateway_baselines import CLIENTS, ServingVehicle, conversion_ms, served_ms
from bench.baselines.images import Timer
from cloud.models.loader import ModelLoader
from ops.processes.child import BenchError
from ops.processes.playback import first_frames
from shared.models.repository import Repository
from tests.pipeline.rig import HEIGHT, WIDTH, noise
from tests.support.gateway import open_gateway


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_a_client_with_lists_returns_the_models_mask(protocol: str, models: Path, bag: Path) -> None:
    """The slow conversion must give the right result."""
    image = noise(5, (HEIGHT, WIDTH, 3))
    with ModelLoader(Repository(models)).open("tiny") as model, open_gateway(model) as doors:
        expected = model.predict(image[None])[0]
        client = CLIENTS[protocol](doors.http if protocol == "rest" else doors.grpc, "tiny", "mask")
        timer = Timer()
        mask, stages_ms = client.predict(image, timer)
        assert np.array_equal(mask, expected)
        assert stages_ms["inferred"] > 0
        assert {"to_lists", "away", "from_lists"} <= timer.durations_ms.keys()
        times = ServingVehicle(client, model.card, list(first_frames(bag, 1))).send({"frame": 0})
        assert times["total"] > times["inferred"] + times["in_lists"]
        assert {"demosaiced", "preprocessed", "link_and_door"} <= times.keys()
        absent = CLIENTS[protocol](doors.http if protocol == "rest" else doors.grpc, "absent", "mask")
        with pytest.raises(BenchError, match="absent"):
            absent.predict(image, Timer())
        for each in (client, absent):
            each.close()


def test_stages_are_parsed_from_the_header() -> None:
    """The inference time is subtracted from the total."""
    assert served_ms("decoded;dur=1.500, inferred;dur=210.25") == {"decoded": 1.5, "inferred": 210.25}
    assert served_ms('cache;desc="a hit", inferred;desc="model";dur=3') == {"inferred": 3.0}
    assert served_ms("") == {}


def test_the_conversion_time_includes_both_directions() -> None:
    """Lists and JSON count; other steps do not."""
    durations_ms = {
        "demosaiced": 1.0,
        "to_lists": 2.0,
        "to_json": 4.0,
        "from_json": 8.0,
        "from_lists": 16.0,
        "away": 32.0,
    }
    assert conversion_ms(durations_ms) == 30.0
