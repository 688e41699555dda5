from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage, Stamp, durations_ns, stage_times


def test_every_stage_belongs_to_one_node() -> None:
    """Otherwise its time would be missing or counted twice."""
    assert sorted((*EDGE_STAGES, *CLOUD_STAGES)) == sorted(Stage)
    cut = EDGE_STAGES.index(Stage.RETURNED)
    assert list(Stage) == [*EDGE_STAGES[:cut], *CLOUD_STAGES, *EDGE_STAGES[cut:]]


def test_a_dropped_frame_has_only_the_stages_that_it_passed() -> None:
    """Later stages are missing instead of zero."""
    assert durations_ns({Stage.DUE: 5, Stage.TAKEN: 12}) == {Stage.TAKEN: 7}
    assert durations_ns({Stage.DUE: 5}) == {}


def test_stamps_of_other_nodes_and_unknown_stages_are_ignored() -> None:
    """A later version may add stages."""
    stamps = (
        Stamp("received", "cloud", 30),
        Stamp("due", "edge", 1),
        Stamp("polished", "cloud", 33),
        Stamp("dequeued", "cloud", 35),
    )
    assert stage_times(stamps, CLOUD_STAGES) == {Stage.RECEIVED: 30, Stage.DEQUEUED: 35}
    assert list(stage_times(stamps, EDGE_STAGES)) == [Stage.DUE]
