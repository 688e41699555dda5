import pytest

from shared.inference.pre_postprocess import Shape, channel_axis, fitting_axes
from shared.models.manifest import AxisOrder, InputSection, OutputKind, OutputSection


@pytest.mark.parametrize(
    ("shape", "size", "axes"),
    [
        ((1, 150, 64, 64), (512, 512), (1,)),
        ((1, 64, 64, 150), (512, 512), (3,)),
        ((1, 21, 64, 64), (64, 64), (1,)),
        ((1, 64, 64, 64), (64, 64), (1, 3)),
        ((1, 64, 128, 256), (512, 1024), (1, 3)),
        ((1, 19, 47, 63), (375, 500), (1,)),
        ((1, 46, 62, 19), (375, 500), (3,)),
        ((None, 19, None, None), (512, 1024), (1, 3)),
        ((1, 19, 388, 388), (572, 572), (1,)),
        ((1, 21, 128, 128), (64, 64), (1,)),
        ((1, 19, 37, 50), (64, 64), ()),
    ],
)
def test_the_aspect_ratio_of_the_input_excludes_axes(
    shape: Shape, size: tuple[int, int], axes: tuple[int, ...]
) -> None:
    """Maps may be smaller or larger than the input, and networks round odd sides."""
    assert fitting_axes(shape, *size) == axes


@pytest.mark.parametrize(
    ("shape", "planar", "labels", "stated", "axis"),
    [
        ((1, 64, 64, 64), True, 64, None, 1),
        ((1, 64, 64, 64), False, 64, None, 3),
        ((1, 64, 64, 64), True, 64, AxisOrder.NHWC, 3),
        ((1, 32, 64, 64), True, 64, None, 1),
        ((1, 32, 32, 64), True, 21, None, 3),
        ((1, 128, 64, 128), True, 128, None, 1),
        ((None, None, None, 19), True, 19, None, 3),
        ((None, 19, None, None), False, 19, None, 1),
        ((1, 19, 37, 50), True, 50, None, 3),
        ((1, 19, 37, 50), True, 7, None, 1),
    ],
)
def test_the_manifest_then_the_shape_then_the_labels_then_the_input_decide(
    shape: Shape, labels: int, stated: AxisOrder | None, axis: int, *, planar: bool
) -> None:
    """The arg max over another axis gives a plausible mask of nonsense."""
    section = OutputSection(tensor="y", kind=OutputKind.SCORES, axes=stated)
    image = InputSection(tensor="x", height=64, width=64)
    assert channel_axis(shape, section, image, planar=planar, channels=(labels,)) == axis
