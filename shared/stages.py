"""The stages of a frame. A stamp is the time at which a frame left a stage, which began with the previous stamp.

`docs/reference/latency-log.md` describes what happens in each stage.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, NamedTuple

from msgspec import Meta

from shared.messages.msgpack_reader import Nanoseconds

_MAX_STAGE, _MAX_NODE = 64, 200  # Characters. A node consists of a role and two names of up to 64.


class Stage(StrEnum):
    """Every stage, in the order in which a frame passes them."""

    DUE = "due"  # The frame is due at the vehicle; latency is measured from here.
    TAKEN = "taken"  # The vehicle starts to process it; frames older than the newest due one are skipped.
    DEMOSAICED = "demosaiced"
    PREPROCESSED = "preprocessed"  # Resized to the model's input.
    GATED = "gated"  # Compared with the frame whose result may be reused; only with a difference detector.
    INFERRED_LOCALLY = "inferred_locally"  # The vehicle's own model has run; only with a local model.
    ENCODED = "encoded"
    SENT = "sent"  # Stamped just before packing, so that packing, broker and link count as crossing.
    RECEIVED = "received"  # Stamped by the worker's network thread.
    DEQUEUED = "dequeued"
    DECODED = "decoded"
    BATCHED = "batched"  # The batch is complete and the engine starts.
    INFERRED = "inferred"  # The result is in host memory.
    POSTPROCESSED = "postprocessed"
    MASK_ENCODED = "mask_encoded"
    REPLIED = "replied"  # Stamped just before packing, like SENT.
    RETURNED = "returned"  # Stamped by the vehicle's network thread.
    MASK_DECODED = "mask_decoded"


EDGE_STAGES = (
    Stage.DUE,
    Stage.TAKEN,
    Stage.DEMOSAICED,
    Stage.PREPROCESSED,
    Stage.GATED,
    Stage.INFERRED_LOCALLY,
    Stage.ENCODED,
    Stage.SENT,
    Stage.RETURNED,
    Stage.MASK_DECODED,
)
OPTIONAL_STAGES = (Stage.GATED, Stage.INFERRED_LOCALLY)  # Frames pass them only if the run uses them.
CLOUD_STAGES = (
    Stage.RECEIVED,
    Stage.DEQUEUED,
    Stage.DECODED,
    Stage.BATCHED,
    Stage.INFERRED,
    Stage.POSTPROCESSED,
    Stage.MASK_ENCODED,
    Stage.REPLIED,
)


class Stamp(NamedTuple):
    """A stage and the time at which a frame left it; a tuple for speed, as each message carries dozens of them."""

    stage: Annotated[str, Meta(max_length=_MAX_STAGE)]  # A `Stage`, or an unknown stage of a later version.
    node: Annotated[str, Meta(max_length=_MAX_NODE)]
    at_ns: Nanoseconds  # By the clock of that node: compare stamps of one node only.


def stage_times(stamps: Iterable[Stamp], node_stages: Iterable[Stage]) -> dict[Stage, int]:
    """Returns the times of a node's stages (ns), in the order of `node_stages`; the last stamp of a stage counts."""
    at = {stamp.stage: stamp.at_ns for stamp in stamps}
    return {stage: at[stage] for stage in node_stages if stage in at}


def durations_ns(times: Mapping[Stage, int]) -> dict[Stage, int]:
    """Returns the duration of each stage, from one node's times in stage order; the sum is last minus first.

    At the vehicle, RETURNED lasts from SENT, which is the whole time the frame was away.
    """
    return {later: times[later] - times[earlier] for earlier, later in pairwise(times)}
