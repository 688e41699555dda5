"""The models that `skylane model build` can build: network, input size, output type and classes."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rosbag_tools.drive.scene import CLASSES, OBJECTS, PRESENCE, WEATHERS
from shared.errors import UnknownNameError

Colour = tuple[int, int, int]


class Format(StrEnum):
    """A file format, named as in `shared.inference.table.formats`."""

    FROZEN_GRAPH = "frozen_graph"
    SAVED_MODEL = "saved_model"
    KERAS = "keras"
    TFLITE = "tflite"


class NetworkOutput(StrEnum):
    """The kind of a model's output."""

    CLASS_IDS = "class_ids"  # One class id per pixel.
    SCORES = "scores"  # One score per class and pixel.
    PROBABILITIES = "probabilities"  # One probability per class, for the whole image.
    OBJECTS = "objects"  # Boxes with one probability per class.


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model to build.

    The input is N×height×width×3 RGB: float32 0..1 for an output of scores, uint8 0..255 for others.

    Attributes:
        architecture: A function of `modelling.architectures.networks`; by default that of the same name.
        formats: The formats to write, with the same weights. The first one's folder is `name`, another's
            `name-<format>`, such as `road-small-saved-model`.
        trained: Built-in weights exist; otherwise the weights are random, drawn from `seed`.
        weights_of: The trained recipe whose built-in weights this one uses, if it has none of its own.
        largest_batch: The largest batch of a worker. If it is 1, the graph has a fixed batch size of 1.
        score_threshold: The lowest score of a reported box.
        colours: The colours of the classes, if they are not those of the drive.
    """

    name: str
    description: str
    height: int
    width: int
    architecture: str = ""
    class_names: tuple[str, ...] = CLASSES
    output: NetworkOutput = NetworkOutput.CLASS_IDS
    formats: tuple[Format, ...] = (Format.FROZEN_GRAPH,)
    trained: bool = True
    weights_of: str = ""
    seed: int = 1
    largest_batch: int = 1
    score_threshold: float = 0.3
    colours: tuple[Colour, ...] = ()

    @property
    def keeps_weights(self) -> bool:
        """True if the built-in file of a trained model is a frozen graph, whose weights are used for every format."""
        return Format.FROZEN_GRAPH in self.formats

    def network(self, *, folded: bool, **variant: bool) -> Any:
        """Returns a new keras.Model with random weights; `modelling.architectures.blocks` explains `folded`.

        `thinned=True` returns one that trains the same variables at lower cost; road models only.
        """
        from modelling.architectures import networks  # noqa: PLC0415  It imports TensorFlow, which `model list` does not need.

        build = getattr(networks, self.architecture or self.name.replace("-", "_"))
        return build(len(self.class_names), folded=folded, **variant)

    def folder_name(self, form: Format) -> str:
        """Returns the name of a format's folder, which is also the model's name."""
        return self.name if form is self.formats[0] else f"{self.name}-{form.replace('_', '-')}"


def recipe(name: str) -> Recipe:
    """Returns a recipe by name.

    Raises:
        UnknownNameError: the name is unknown; the message suggests the nearest ones.
    """
    if name not in RECIPES:
        raise UnknownNameError("model to build", name, RECIPES)
    return RECIPES[name]


_SIDES = (224, 600)  # Pixels: the size of most public classifiers, and that of EfficientNet-B7.
_THOUSAND = tuple(f"class_{number}" for number in range(1000))  # The number of ImageNet classes.
_PRESENCE_COLOURS = ((150, 160, 175), (30, 110, 255))
_TWENTY = (*CLASSES, *(f"unused-{number}" for number in range(len(CLASSES), 20)))

RECIPES = {
    each.name: each
    for each in (
        Recipe(
            name="road-small",
            description="MobileNetV3-small, output stride 8, LR-ASPP",
            height=608,
            width=968,
            formats=(Format.FROZEN_GRAPH, Format.SAVED_MODEL),
        ),
        Recipe(
            name="road-tiny",
            description="The first half of MobileNetV3-small, output stride 16, small LR-ASPP",
            height=304,
            width=484,
            formats=(Format.TFLITE,),
        ),
        Recipe(
            name="road-large",
            description="MobileNetV3-large with its last stage at half width, output stride 8, LR-ASPP",
            height=608,
            width=968,
            trained=False,
        ),
        Recipe(
            name="street-deeplab",
            description="MobileNetV3-large, output stride 8, DeepLabV3+",
            class_names=_TWENTY,
            height=1024,
            width=2048,
            output=NetworkOutput.SCORES,
            formats=(Format.SAVED_MODEL,),
            trained=False,
        ),
        Recipe(
            name="street-lite",
            description="MobileNetV3-large, output stride 16, DeepLabV3+ of half the width",
            class_names=_TWENTY,
            height=1024,
            width=2048,
            output=NetworkOutput.SCORES,
            formats=(Format.SAVED_MODEL,),
            trained=False,
        ),
        Recipe(
            name="road-weather",
            description="MobileNetV3-small, output stride 32, mean pooling, one dense layer",
            class_names=WEATHERS,
            height=152,
            width=242,
            output=NetworkOutput.PROBABILITIES,
            largest_batch=8,
            colours=((70, 160, 235), (150, 160, 175), (225, 120, 60), (235, 235, 225), (40, 90, 150)),
        ),
        Recipe(
            name="road-objects",
            description="MobileNetV3-small, output stride 16, LR-ASPP to a quarter, one box a cell without anchors",
            class_names=tuple(OBJECTS),
            height=304,
            width=484,
            output=NetworkOutput.OBJECTS,
            largest_batch=8,
            score_threshold=0.4,
            colours=((30, 110, 255), (255, 60, 60)),
        ),
        Recipe(
            name="car-tiny",
            description="The first five blocks of MobileNetV3-small, mean and largest value, one dense layer",
            class_names=PRESENCE,
            height=76,
            width=121,
            output=NetworkOutput.PROBABILITIES,
            formats=(Format.TFLITE,),
            colours=_PRESENCE_COLOURS,
        ),
        Recipe(
            name="car-reference",
            description="road-small with another last layer: the longest column of pixels of vehicles",
            class_names=PRESENCE,
            height=304,
            width=484,
            output=NetworkOutput.PROBABILITIES,
            weights_of="road-small",
            largest_batch=8,
            colours=_PRESENCE_COLOURS,
        ),
        *(
            Recipe(
                name=f"{network}-{side}",
                architecture=architecture,
                description=description,
                class_names=_THOUSAND,
                height=side,
                width=side,
                output=NetworkOutput.PROBABILITIES,
                formats=(Format.FROZEN_GRAPH, Format.SAVED_MODEL),
                trained=False,
                largest_batch=8,
                colours=((128, 128, 128),) * len(_THOUSAND),
            )
            for network, architecture, description in (
                ("efficientnet-b7", "b7", "EfficientNet-B7 as published"),
                ("mobilenet-v3-large", "mobilenet_v3_large", "MobileNetV3-large as published"),
            )
            for side in _SIDES
        ),
    )
}
