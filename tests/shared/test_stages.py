from hypothesis import given
from hypothesis import strategies as st

from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage, Stamp, durations_ns, stage_times


def test_the_two_nodes_share_all_stages_between_them() -> None:
    """A stage that belonged to no node, or to two, would be missing from every sum, or be counted twice."""
    assert sorted((*EDGE_STAGES, *CLOUD_STAGES)) == sorted(Stage)
    cut = EDGE_STAGES.index(Stage.RETURNED)
    assert list(Stage) == [*EDGE_STAGES[:cut], *CLOUD_STAGES, *EDGE_STAGES[cut:]]


@given(st.lists(st.integers(0, 1 << 62), min_size=len(EDGE_STAGES), max_size=len(EDGE_STAGES)))
def test_durations_sum_to_the_total_exactly(at_ns: list[int]) -> None:
    """Where the time went must add up to the time that went, to the nanosecond."""
    times = dict(zip(EDGE_STAGES, sorted(at_ns), strict=True))
    assert sum(durations_ns(times).values()) == times[Stage.MASK_DECODED] - times[Stage.DUE]
    assert min(durations_ns(times).values()) >= 0


def test_a_frame_that_was_given_up_early_has_only_the_stages_it_passed() -> None:
    """A dropped frame has no encoding time; nought would be a lie."""
    assert durations_ns({Stage.DUE: 5, Stage.TAKEN: 12}) == {Stage.TAKEN: 7}
    assert durations_ns({Stage.DUE: 5}) == {}


def test_stamps_of_the_other_node_and_of_unknown_stages_are_left_out() -> None:
    """A later version may have stages of its own; they must not shift ours."""
    stamps = (
        Stamp("received", "cloud", 30),
        Stamp("due", "edge", 1),
        Stamp("polished", "cloud", 33),
        Stamp("dequeued", "cloud", 35),
    )
    assert stage_times(stamps, CLOUD_STAGES) == {Stage.RECEIVED: 30, Stage.DEQUEUED: 35}
    assert list(stage_times(stamps, EDGE_STAGES)) == [Stage.DUE]
