"""The table of presenters."""

from shared.registry import Entry

PRESENTERS = {
    "hold": Entry("edge.presenting.hold:HoldPresenter", "edge"),
    "warp": Entry("edge.presenting.warp:WarpPresenter", "edge"),
    "fuse": Entry("edge.presenting.fuse:FusePresenter", "local"),
}
