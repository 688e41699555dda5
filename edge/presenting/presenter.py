"""The contract and the table of presenters, which turn late results into an output for now; the hold presenter."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from shared.imaging.geometry import Geometry
from shared.imaging.image_files import ImageArray
from shared.messages.model_card import ModelCard
from shared.registry import PluginTable
from shared.runlog.presented_log import OutputOrigin
from shared.task import Task


@dataclass(frozen=True, slots=True)
class Tick:
    """A frame when it is due: the presenter makes an output for this time."""

    sequence: int
    due_ns: int
    image: ImageArray  # The model's input: RGB, H×W×3 uint8.
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class ArrivedResult:
    """The newest result of a camera that has arrived, and the frame that it was computed for."""

    sequence: int
    due_ns: int
    result: Any  # The type that the task of the model decodes.
    origin: OutputOrigin = OutputOrigin.REMOTE  # Or LOCAL: the local model answered the frame in place of a worker.


@dataclass(frozen=True, slots=True)
class Output:
    """The result that the vehicle can act on at a tick."""

    origin: OutputOrigin
    result: Any = None
    reason: str = ""  # The reason for a missing result.
    flow: str = ""  # The size of the optical flow that was used; empty without one.


@dataclass(frozen=True, slots=True)
class PresenterParts:
    """The parts that a presenter is built from."""

    card: ModelCard
    local: Callable[[Tick], Any] | None = None  # Returns the local model's result for a tick; None if it failed.
    fusion: Path | None = None  # The measured reliability of both models; None: the file that ships for them.
    local_card: ModelCard | None = None
    local_problem: Callable[[], str] = str  # Returns why the local model last gave no result.
    clock_ns: Callable[[], int] | None = None  # Limits the time of a tick; without it, outputs are reproducible.


class Presenter(Protocol):
    """Makes the outputs of one camera, in one thread. Built as `Presenter(parts)`. Ticks come in order, with gaps."""

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """Returns the output for a tick. `newest`: None if no result has arrived, or if it is too old."""


def _has_places(task: Task) -> bool:
    """Returns whether the results of a task belong to places in the image, which move."""
    return task.has_shape or "boxes" in task.heads


class PresenterEntry(NamedTuple):
    """A row of the table."""

    path: str  # "module:attribute" of a Presenter.
    extra: str  # The pip extra that installs its libraries.
    holds: Callable[[Task], bool] = _has_places  # True for tasks whose results it can present.
    needs_local: bool = False  # True if it runs the vehicle's own model.


PRESENTERS = PluginTable(
    "presenter",
    "skylane.presenters",
    PresenterEntry,
    {
        "hold": PresenterEntry("edge.presenting.presenter:HoldPresenter", "edge", lambda _: True),
        "warp": PresenterEntry("edge.presenting.warp:WarpPresenter", "edge"),
        "warp-fine": PresenterEntry("edge.presenting.warp:FineWarpPresenter", "edge"),
        "fuse": PresenterEntry("edge.presenting.fuse:FusePresenter", "local", needs_local=True),
    },
)


class HoldPresenter:
    """Presents the newest result until a newer one arrives."""

    def __init__(self, parts: PresenterParts) -> None:
        del parts  # The contract passes them; this presenter needs no parts.

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        del tick
        return Output(OutputOrigin.NONE) if newest is None else Output(newest.origin, newest.result)
