"""The presenter that moves the newest result to now, by the motion of the image since its frame."""

from edge.presenting.flow import FlowSize, FlowTrack
from edge.presenting.presenter import ArrivedResult, Output, PresenterParts, Tick
from edge.presenting.warping import moved_result
from shared.runlog.presented_log import OutputOrigin


class WarpPresenter:
    """Presents the newest result, moved along the optical flow. Without a known flow, the result is held."""

    def __init__(self, parts: PresenterParts) -> None:
        self._track = FlowTrack(parts.clock_ns)

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        self._track.add(tick)
        return moved_output(self._track, tick, newest)


def moved_output(track: FlowTrack, tick: Tick, newest: ArrivedResult | None) -> Output:
    """Returns the newest result, moved to the present tick of the track."""
    if newest is None:
        return Output(OutputOrigin.NONE)
    if newest.due_ns >= tick.due_ns:
        return Output(newest.origin, newest.result)
    motion = track.motion_since(newest.due_ns)
    moved = None if motion is None else moved_result(newest.result, motion, tick.geometry)
    if moved is None:
        return Output(newest.origin, newest.result, flow=FlowSize.NONE)
    return Output(OutputOrigin.WARPED, moved, flow=track.size)
