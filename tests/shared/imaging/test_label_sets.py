"""Label sets of public data sets, and how `--labels` finds them."""

import os
from pathlib import Path

import numpy as np
import pytest

from shared.errors import UnknownNameError
from shared.imaging.labels import MAX_MASK_LABELS, Labels, LabelsError, colourise, label_sets, labels_from

# Number of classes, and well-known classes of each set with their official colours.
SETS = {
    "cityscapes": (19, {0: ("road", (128, 64, 128)), 13: ("car", (0, 0, 142)), 18: ("bicycle", (119, 11, 32))}),
    "cityscapes-34": (34, {7: ("road", (128, 64, 128)), 26: ("car", (0, 0, 142)), 33: ("bicycle", (119, 11, 32))}),
    "comma10k": (6, {0: ("road", (64, 32, 32))}),
    "davis": (12, {0: ("background", (0, 0, 0)), 11: ("foreground", (255, 255, 255))}),
    "ade20k": (150, {0: ("wall", (120, 120, 120)), 2: ("sky", (6, 230, 230)), 149: ("flag", (92, 0, 255))}),
    "ade20k-151": (151, {0: ("background", (0, 0, 0)), 1: ("wall", (120, 120, 120)), 150: ("flag", (92, 0, 255))}),
    "voc": (21, {0: ("background", (0, 0, 0)), 15: ("person", (192, 128, 128)), 20: ("tvmonitor", (0, 64, 128))}),
    "voc-20": (20, {0: ("aeroplane", (128, 0, 0)), 14: ("person", (192, 128, 128)), 19: ("tvmonitor", (0, 64, 128))}),
    "coco": (80, {0: ("person", (220, 20, 60)), 2: ("car", (0, 0, 142)), 79: ("toothbrush", (191, 162, 208))}),
    "coco-90": (90, {0: ("person", (220, 20, 60)), 11: ("unused-12", (0, 0, 0)), 89: ("toothbrush", (191, 162, 208))}),
    "coco-91": (91, {0: ("background", (0, 0, 0)), 3: ("car", (0, 0, 142)), 90: ("toothbrush", (191, 162, 208))}),
    "camvid": (11, {0: ("sky", (128, 128, 128)), 3: ("road", (128, 64, 128)), 10: ("bicyclist", (0, 128, 192))}),
    "camvid-12": (12, {0: ("sky", (128, 128, 128)), 11: ("unlabelled", (0, 0, 0))}),
    "street12": (12, {0: ("road", (128, 64, 128)), 11: ("none", (0, 0, 0))}),
}
_SHARED_COLOURS = {
    "ade20k": 1,
    "ade20k-151": 1,
    "coco-90": 9,
    "coco-91": 10,
    "cityscapes-34": 14,
}  # ADE20K gives road and skyscraper one.


def test_the_shipped_sets_are_those_of_this_table() -> None:
    """A new set needs its anchors here."""
    assert list(label_sets()) == sorted(SETS)


@pytest.mark.parametrize("name", sorted(SETS))
def test_a_set_has_the_names_and_colours_of_its_data_set(name: str) -> None:
    """A shifted or repeated row gives plausible masks with wrong names."""
    labels = labels_from(name)
    count, anchors = SETS[name]
    assert len(labels.names) == len(set(labels.names)) == count
    assert {key: (labels.names[key], labels.colours[key]) for key in anchors} == anchors
    assert count - len(set(labels.colours)) == _SHARED_COLOURS.get(name, 0)
    assert all(each == each.strip().lower() for each in labels.names)


def test_the_variants_of_a_set_have_the_same_classes() -> None:
    """They differ in their background and gaps only."""
    for name, start, variant in (("ade20k", 1, "ade20k-151"), ("voc-20", 1, "voc"), ("coco-90", 1, "coco-91")):
        assert labels_from(name).names == labels_from(variant).names[start:]
    assert labels_from("coco").names == tuple(x for x in labels_from("coco-90").names if not x.startswith("unused-"))
    assert labels_from("camvid").names == labels_from("camvid-12").names[:-1]


def test_the_colours_of_voc_spread_the_bits_of_the_class_id() -> None:
    """The palette of the data set is a formula: the lowest three bits of an id are the highest of red, green and blue."""
    for class_id, colour in enumerate(labels_from("voc").colours):
        bits = [[class_id >> (3 * place + channel) & 1 for place in range(3)] for channel in range(3)]
        assert colour == tuple(first << 7 | second << 6 | third << 5 for first, second, third in bits)


def test_a_name_is_a_set_and_a_path_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that happens to be named like a set needs ./; a file with another name does not."""
    monkeypatch.chdir(tmp_path)
    for file in ("voc", "mine", "mine.yaml"):
        Path(file).write_text("- {name: only, colour: [1, 2, 3]}\n")
    assert len(labels_from("voc").names) == 21
    for given in ("./voc", "mine", "mine.yaml", str(tmp_path / "voc")):
        assert labels_from(given) == Labels(("only",), ((1, 2, 3),))


def test_a_wrong_name_suggests_sets_and_says_that_a_file_needs_a_path() -> None:
    """The nearest sets, or all of them."""
    with pytest.raises(
        UnknownNameError, match=r"no label set 'cityscape': did you mean cityscapes or cityscapes-34\? .* \./cityscape"
    ):
        labels_from("cityscape")
    with pytest.raises(UnknownNameError, match=r"choose one of ade20k, .*voc-20 \(a file needs a path"):
        labels_from("kitti")
    with pytest.raises(LabelsError, match=r"missing\.yaml: No such file"):
        labels_from("missing.yaml")


def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    """Reading a pipe would wait for ever, and a device never ends."""
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path, tmp_path / "pipe.yaml", Path("/dev/zero")):
        with pytest.raises(LabelsError, match="is not a file: give a label file, or a label set: ade20k, "):
            labels_from(str(path))


def test_a_class_without_a_name_is_black_and_numbered() -> None:
    """A mask may have ids above those of its labels: they are never given another class's name."""
    labels = labels_from("cityscapes")
    assert labels.name_of(19) == "class-19"
    mask = np.arange(MAX_MASK_LABELS, dtype=np.uint8)[None]
    colours = colourise(mask, labels)
    assert colours[0, :19].tolist() == [list(colour) for colour in labels.colours]
    assert not colours[0, 19:].any()
