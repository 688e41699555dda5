"""The layouts of public data sets with label images: where their files are, how they are named, and what their labels mean."""

from typing import NamedTuple


class ImagePattern(NamedTuple):
    """The paths of images and of their label images in the folder; a `*` stands for the same text in both."""

    images: str
    truth: str
    labels: str  # The label set.


class DataSetLayout(NamedTuple):
    """The layout of a data set."""

    description: str
    patterns: tuple[ImagePattern, ...] = ()  # The first one with images and label images is used.
    name: str = ""  # Pattern of an image's name: the sequence, and the number of the frame. Empty: no numbers.
    rate_hz: float = 0.0  # Frame numbers per second.
    coloured: tuple[str, ...] = ("colour",)  # Kinds of PNG with the colours of the label file; others have class ids.


_CITYSCAPES = tuple(
    ImagePattern(f"{images}/*/*/*_leftImg8bit.png", f"gtFine/*/*/*_gtFine_{ids}.png", labels)
    for images in ("leftImg8bit_sequence", "leftImg8bit")
    for ids, labels in (("labelIds", "cityscapes-34"), ("labelTrainIds", "cityscapes"))
)
LAYOUTS = {
    "camvid": DataSetLayout(
        "CamVid",
        (
            ImagePattern("images/*.png", "labels/*.png", "camvid-12"),
            ImagePattern("*/*.png", "*annot/*.png", "camvid-12"),
        ),
        r"(.+)_f?([0-9]+)",
        30.0,
    ),
    "cityscapes": DataSetLayout("Cityscapes", _CITYSCAPES, r"(.+_[0-9]+)_([0-9]+)_leftImg8bit", 17.0),
    "kitti": DataSetLayout(
        "KITTI semantics",
        (ImagePattern("training/image_2/*.png", "training/semantic/*.png", "cityscapes-34"),),
        "([0-9]+)_([0-9]+)",
        10.0,
    ),
    "bdd100k": DataSetLayout(
        "BDD100K, 10k images",
        (ImagePattern("images/10k/*/*.jpg", "labels/sem_seg/masks/*/*.png", "cityscapes"),),
    ),
    "comma10k": DataSetLayout(
        "comma10k",
        (ImagePattern("imgs/*.png", "masks/*.png", "comma10k"),),
        coloured=("colour", "grey", "palette"),
    ),
    "davis": DataSetLayout(
        "DAVIS",
        tuple(
            ImagePattern(f"JPEGImages/{size}/*/*.jpg", f"Annotations/{size}/*/*.png", "davis")
            for size in ("480p", "Full-Resolution", "1080p")
        ),
        "()([0-9]+)",
        24.0,
        coloured=("colour", "grey"),
    ),
    "pairs": DataSetLayout("any images and label images, by --images, --truth and --labels"),
}
