import pytest

from tests.fuzz.corpus import MOST_BYTES, TARGETS, corpus, inputs, target


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_read_or_refused(name: str) -> None:
    """What fuzzing reached once is reached in every test run; `make fuzz` looks for more."""
    kept = inputs(corpus(name))
    assert kept
    assert sum(path.stat().st_size for path in kept) <= MOST_BYTES
    for path in kept:
        target(name).run(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_valid_is_read(name: str) -> None:
    """A target whose seeds are refused at the door fuzzes nothing but the door."""
    assert sum(1 for _ in target(name).seeds()) > 1
    for data in target(name).seeds():
        target(name).run(data)


@pytest.mark.parametrize("name", ["wire", "bag"])
def test_what_mutations_make_is_read_or_refused(name: str) -> None:
    """A mutation that raises would be told as a finding of the parser."""
    for seed, data in enumerate(target(name).seeds()):
        target(name).run(target(name).mutated(data, seed))
