"""The table of presenters."""

from collections.abc import Callable
from typing import NamedTuple

from shared.tasks.task import Task


def _has_places(task: Task) -> bool:
    """Returns whether the results of a task belong to places in the image, which move."""
    return task.has_shape or "boxes" in task.heads


class PresenterEntry(NamedTuple):
    """A row of the table."""

    path: str  # "module:attribute" of a Presenter.
    extra: str  # The pip extra that installs its libraries.
    holds: Callable[[Task], bool] = _has_places  # True for tasks whose results it can present.
    needs_local: bool = False  # True if it runs the vehicle's own model.


PRESENTERS = {
    "hold": PresenterEntry("edge.presenting.hold:HoldPresenter", "edge", lambda _: True),
    "warp": PresenterEntry("edge.presenting.warp:WarpPresenter", "edge"),
    "fuse": PresenterEntry("edge.presenting.fuse:FusePresenter", "local", needs_local=True),
}
