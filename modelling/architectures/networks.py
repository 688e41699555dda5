"""The four networks: a trunk, a head, and scores at the full size of the picture."""

from typing import Any

from modelling.architectures import heads, mobilenet_v3
from modelling.architectures.blocks import Blocks, ResizeLike, Tensor
from modelling.frameworks import keras

Network = Any  # keras.Model; Keras ships no types.


def road_small(classes: int, *, folded: bool, thinned: bool = False) -> Network:
    """MobileNetV3-small at output stride 8 with LR-ASPP: 1.1 million weights."""
    blocks = Blocks(folded)
    picture = keras.Input((None, None, 3), name="picture")
    features = mobilenet_v3.trunk(blocks, picture, mobilenet_v3.SMALL, output_stride=8, last=576, thinned=thinned)
    return _whole(picture, heads.lr_aspp(blocks, features, classes, width=128, thinned=thinned))


def road_large(classes: int, *, folded: bool, thinned: bool = False) -> Network:
    """MobileNetV3-large at output stride 8, its last stage at half width, with LR-ASPP: 2.2 million weights."""
    blocks = Blocks(folded)
    picture = keras.Input((None, None, 3), name="picture")
    rows = mobilenet_v3.halved_tail(mobilenet_v3.LARGE)
    features = mobilenet_v3.trunk(blocks, picture, rows, output_stride=8, last=960, thinned=thinned)
    return _whole(picture, heads.lr_aspp(blocks, features, classes, width=256, thinned=thinned))


def street_deeplab(classes: int, *, folded: bool) -> Network:
    """MobileNetV3-large at output stride 8 with DeepLabV3+: 12 million weights."""
    blocks = Blocks(folded)
    picture = keras.Input((None, None, 3), name="picture")
    features = mobilenet_v3.trunk(blocks, picture, mobilenet_v3.LARGE, output_stride=8, last=960)
    return _whole(picture, heads.deeplab_v3_plus(blocks, features, classes, width=256, rates=(12, 24, 36)))


def street_lite(classes: int, *, folded: bool) -> Network:
    """MobileNetV3-large at output stride 16 with a DeepLabV3+ of half the width: 7 million weights."""
    blocks = Blocks(folded)
    picture = keras.Input((None, None, 3), name="picture")
    features = mobilenet_v3.trunk(blocks, picture, mobilenet_v3.LARGE, output_stride=16, last=960)
    return _whole(picture, heads.deeplab_v3_plus(blocks, features, classes, width=128, rates=(6, 12, 18)))


def _whole(picture: Tensor, scores: Tensor) -> Network:
    # Named, or Keras would count its networks, and the same weights give other bytes the second time.
    return keras.Model(picture, ResizeLike(name="scores")(scores, picture), name="network")
