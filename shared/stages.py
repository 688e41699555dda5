"""The stages of a frame's journey. A stamp is the moment a frame left a stage; time between two stamps belongs to the later."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, NamedTuple

from msgspec import Meta

from shared.encoding.field_types import Nanoseconds

_MAX_STAGE, _MAX_NODE = 64, 200  # Characters; a node is a role and two names of 64.


class Stage(StrEnum):
    """Every stage, in the order a frame passes them."""

    DUE = "due"  # When the frame should exist at the edge: latency counts from here.
    TAKEN = "taken"  # The edge starts on it; older frames than the newest due one are never taken.
    DEMOSAICED = "demosaiced"
    PREPROCESSED = "preprocessed"  # Resized to the model's input.
    ENCODED = "encoded"
    SENT = "sent"  # Taken just before packing: packing, broker and link belong to the crossing.
    RECEIVED = "received"  # By the worker's network thread.
    DEQUEUED = "dequeued"
    DECODED = "decoded"
    BATCHED = "batched"  # The batch is closed and the engine starts.
    INFERRED = "inferred"  # The result is in host memory.
    POSTPROCESSED = "postprocessed"
    MASK_ENCODED = "mask_encoded"
    REPLIED = "replied"  # Taken just before packing, as SENT.
    RETURNED = "returned"  # Received by the edge's network thread.
    MASK_DECODED = "mask_decoded"


EDGE_STAGES = (
    Stage.DUE,
    Stage.TAKEN,
    Stage.DEMOSAICED,
    Stage.PREPROCESSED,
    Stage.ENCODED,
    Stage.SENT,
    Stage.RETURNED,
    Stage.MASK_DECODED,
)
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
    """A stage and the moment a frame left it: a tuple, as on the wire, for a frame brings and takes dozens of them."""

    stage: Annotated[str, Meta(max_length=_MAX_STAGE)]  # A Stage, or a stage of a later version, which is kept.
    node: Annotated[str, Meta(max_length=_MAX_NODE)]
    at_ns: Nanoseconds  # Subtract only stamps of one node: two nodes disagree on "now".


def stage_times(stamps: Iterable[Stamp], node_stages: Iterable[Stage]) -> dict[Stage, int]:
    """The times of one node's stages, in nanoseconds, in the order of `node_stages`; the last stamp of a stage wins."""
    at = {stamp.stage: stamp.at_ns for stamp in stamps}
    return {stage: at[stage] for stage in node_stages if stage in at}


def durations_ns(times: Mapping[Stage, int]) -> dict[Stage, int]:
    """How long each stage took, from the times of one node in stage order. They sum to last minus first exactly.

    Of the edge, RETURNED lasts from SENT: all the time the frame was away.
    """
    return {later: times[later] - times[earlier] for earlier, later in pairwise(times)}
