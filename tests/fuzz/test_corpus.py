import pytest

from tests.fuzz.corpus import MAX_CORPUS_BYTES, TARGETS, corpus, inputs, target


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_raises_no_unexpected_error(name: str) -> None:
    """Every test run repeats the inputs found so far; `make fuzz` searches for more."""
    stored = inputs(corpus(name))
    assert stored
    assert sum(path.stat().st_size for path in stored) <= MAX_CORPUS_BYTES
    for path in stored:
        target(name).run(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_raise_no_unexpected_error(name: str) -> None:
    """A target without valid seeds would only fuzz the first check of a parser."""
    assert sum(1 for _ in target(name).seeds()) > 1
    for data in target(name).seeds():
        target(name).run(data)


@pytest.mark.parametrize("name", ["wire", "bag"])
def test_mutations_raise_no_unexpected_error(name: str) -> None:
    """An exception in a mutation would look like a bug in a parser."""
    for seed, data in enumerate(target(name).seeds()):
        target(name).run(target(name).mutated(data, seed))
