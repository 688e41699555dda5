import json
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cloud.engines.tensorflow.runtime import tf
from cloud.models import engine_selection
from cloud.models.engine_benchmark import candidates, race, reference, turns
from cloud.models.engine_selection import EngineChoice, select_engine
from shared.errors import SkylaneError
from shared.models.manifest import Placement, Precision


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv(engine_selection.CACHE_VARIABLE, str(folder))
    return folder / "engines.json"


def _add(workshop: Any, name: str = "m", **changes: Any) -> Any:
    return workshop.add(name, workshop.graph(lambda scores: tf.argmax(scores, -1)), **changes)


def _sha256(workshop: Any, name: str) -> str:
    return str(workshop.repository.find(name).manifest.sha256)


def _select(workshop: Any, placement: Placement = Placement()) -> EngineChoice:  # noqa: B008 - frozen.
    return select_engine(workshop.repository, workshop.repository.find("m"), placement)


def _candidates(workshop: Any) -> set[str]:
    return {each.stored.name for each in candidates(workshop.repository, workshop.repository.find("m"))}


def _reference(workshop: Any, name: str) -> str:
    return reference(workshop.repository, workshop.repository.find(name)).stored.name


def test_the_choice_is_described_and_cached(workshop: Any, cache: Path) -> None:
    """The model keeps its name, and the next start does not measure."""
    _add(workshop, engine="auto")
    with workshop.open("m") as model:
        assert "engine auto: " in model.describe()
        assert "measured now" in model.describe()
        assert model.card.name == "m"
    assert cache.is_file()
    with workshop.open("m") as model:
        assert "remembered from 20" in model.describe()


def test_a_converted_model_below_the_floor_is_refused(workshop: Any) -> None:
    """The agreement in its manifest does not count."""
    _add(workshop, engine="auto")
    workshop.add(
        "m-worse",
        workshop.graph(lambda scores: tf.argmax(-scores, -1)),
        converted_from={"model": "m", "sha256": _sha256(workshop, "m")},
        agreement=1.0,
    )
    choice = _select(workshop)
    assert choice.candidate.stored.name == "m"
    assert any("of m-worse" in reason and "floor 99.9 %" in reason for reason in choice.measurement.refused)


def test_a_converted_model_serves_under_the_name_of_its_source(workshop: Any) -> None:
    """Vehicles do not need to know which file runs."""
    _add(workshop)
    source = _sha256(workshop, "m")
    _add(workshop, "m-copy", converted_from={"model": "m", "sha256": source})
    assert _candidates(workshop) == {"m", "m-copy"}
    assert _reference(workshop, "m-copy") == "m"


def test_a_model_converted_from_other_weights_is_no_candidate(workshop: Any) -> None:
    """The source has been retrained since."""
    _add(workshop)
    _add(workshop, "m-old", converted_from={"model": "m", "sha256": "0" * 64})
    assert _candidates(workshop) == {"m"}


def test_a_changed_file_is_measured_again(workshop: Any) -> None:
    """The cached choice belongs to the old file."""
    folder = _add(workshop)
    assert not _select(workshop).remembered
    assert _select(workshop).remembered
    (folder / "model.yaml").unlink()
    (folder / "model.pb").unlink()
    folder.rmdir()
    workshop.add("m", workshop.graph(lambda scores: tf.argmax(scores + 1.0, -1)))
    assert not _select(workshop).remembered


def test_a_damaged_cache_is_replaced(workshop: Any, cache: Path) -> None:
    """It must not end the start of a worker."""
    _add(workshop)
    first = _select(workshop).measurement
    (key,) = json.loads(cache.read_text())["choices"]
    for content in ("", "[]", '{"form": 2}', '{"form": 9, "choices": {}}', '{"choices": {"k": {"chosen": "m"}}}'):
        cache.write_text(content)
        assert engine_selection.stored_measurement(key) is None
        engine_selection.store_measurement(key, first)
        assert json.loads(cache.read_text())["choices"].keys() == {key}
    assert _select(workshop).remembered


def test_a_cache_that_cannot_be_written_is_no_error(
    workshop: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers often have a read-only home."""
    cache.write_text("a file where a folder is wanted")
    monkeypatch.setenv(engine_selection.CACHE_VARIABLE, str(cache))
    _add(workshop)
    assert _select(workshop).asked.name == "m"


def test_an_unsupported_precision_is_an_error(workshop: Any) -> None:
    """No other precision is used instead."""
    _add(workshop)
    with pytest.raises(SkylaneError, match="model m: no engine is suitable"):
        _select(workshop, Placement(precision=Precision.INT8))


def test_a_cached_choice_that_is_not_a_candidate_is_measured_again(workshop: Any, cache: Path) -> None:
    """The cache file may have been edited."""
    _add(workshop)
    _select(workshop)
    document = json.loads(cache.read_text())
    for key in document["choices"]:
        document["choices"][key] |= {"chosen": "m 1 on tflite fp32"}
    cache.write_text(json.dumps(document))
    choice = _select(workshop)
    assert not choice.remembered
    assert choice.candidate.engine != "tflite"
    str(choice)


def test_an_invalid_manifest_of_another_model_is_ignored(workshop: Any) -> None:
    """A worker must start while another model is edited."""
    _add(workshop)
    (workshop.root / "broken").mkdir()
    (workshop.root / "broken" / "model.yaml").write_text("format: [")
    assert _candidates(workshop) == {"m"}
    _add(workshop, "m-copy", converted_from={"model": "broken", "sha256": "0" * 64})
    assert _reference(workshop, "m-copy") == "m-copy"


def test_a_converted_model_with_other_outputs_is_refused(workshop: Any) -> None:
    """Its manifest may be wrong."""
    _add(workshop)
    workshop.add(
        "m-other",
        workshop.graph(lambda scores: tf.reduce_mean(scores, [1, 2])),
        converted_from={"model": "m", "sha256": _sha256(workshop, "m")},
        task="classification",
        output={"kind": "logits"},
    )
    choice = _select(workshop)
    assert choice.candidate.stored.name == "m"
    assert any("of m-other" in reason and "the models are different" in reason for reason in choice.measurement.refused)


def test_concurrent_starts_measure_once(workshop: Any, cache: Path) -> None:
    """Replicas that start together would distort the measurements."""
    _add(workshop)
    found: list[bool] = []
    with engine_selection.measurement_lock():
        others = [threading.Thread(target=lambda: found.append(_select(workshop).remembered)) for _ in range(2)]
        for each in others:
            each.start()
        assert not cache.exists()
    for each in others:
        each.join()
    assert sorted(found) == [False, True]


def test_a_race_runs_each_candidate_once_per_round() -> None:
    """Other load on the machine then affects all of them."""
    order: list[str] = []
    rounds: list[int] = []
    took_ms = race({key: lambda key=key: order.append(key) for key in "abc"}, 3, lambda: rounds.append(len(order)))  # type: ignore[misc]  # A default binds the key.
    assert all(sorted(order[start : start + 3]) == ["a", "b", "c"] for start in (0, 3, 6))
    assert rounds == [3, 6, 9]
    assert {len(each) for each in took_ms.values()} == {3}


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_over_the_rounds_each_follows_each_other_equally_often(count: int) -> None:
    """Spinning threads of one run slow down the next one."""
    rounds = [turns(range(count), number) for number in range(2 * count)]
    assert all(sorted(each) == list(range(count)) for each in rounds)
    followed = Counter(pair for each in rounds for pair in pairwise(each))
    assert len(followed) == count * (count - 1)
    assert len(set(followed.values())) <= 1
