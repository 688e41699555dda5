"""The presenter that shows the newest result as it is."""

from edge.presenting.presenter import ArrivedResult, Output, PresenterParts, Tick
from shared.runlog.presented_log import OutputOrigin


class HoldPresenter:
    """Presents the newest result until a newer one arrives."""

    def __init__(self, parts: PresenterParts) -> None:
        del parts  # It needs none.

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        del tick
        return Output(OutputOrigin.NONE) if newest is None else Output(newest.origin, newest.result)
