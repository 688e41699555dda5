"""The image being drawn, with the owner (class or object) of each pixel."""

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.camera import Polygon

Image = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]

CLASSES = (
    "road",
    "sidewalk",
    "building",
    "pole",
    "vegetation",
    "sky",
    "person",
    "rider",
    "car",
    "truck",
    "bus",
    "none",
)
ROAD, SIDEWALK, BUILDING, POLE, VEGETATION, SKY, PERSON, RIDER, CAR, TRUCK, BUS, NONE = range(12)


def palette(text: str) -> tuple[Colour, ...]:
    """Parses RGB colours in hexadecimal notation, separated by spaces: "ff0000 00ff00"."""
    triples = (bytes.fromhex(each) for each in text.split())
    return tuple((red, green, blue) for red, green, blue in triples)


class Canvas:
    """An RGB image and its owner map, drawn together without antialiasing so that both have the same edges.

    Attributes:
        rgb: H×W×3 uint8.
        owners: H×W uint8; values below 12 are class ids, values from 12 on are objects of `things`.
    """

    def __init__(self, width: int, height: int) -> None:
        self.rgb: Image = np.zeros((height, width, 3), np.uint8)
        self.owners: Image = np.full((height, width), NONE, np.uint8)
        self.things: list[int] = []

    def new_thing(self, class_id: int) -> int:
        """Returns a new owner for an object of a class, or the class itself if all 8-bit owners are in use."""
        if len(CLASSES) + len(self.things) > np.iinfo(np.uint8).max:
            return class_id
        self.things.append(class_id)
        return len(CLASSES) + len(self.things) - 1

    def class_ids(self) -> Image:
        """Returns the class id of each pixel, H×W uint8."""
        table = np.full(256, NONE, np.uint8)
        table[: len(CLASSES)] = range(len(CLASSES))
        table[len(CLASSES) : len(CLASSES) + len(self.things)] = self.things
        return np.asarray(cv2.LUT(self.owners, table), np.uint8)

    def fill(self, polygon: Polygon | None, colour: Colour, owner: int) -> None:
        """Fills a convex polygon; None draws nothing."""
        if polygon is not None:
            cv2.fillConvexPoly(self.rgb, polygon, colour, cv2.LINE_8)
            cv2.fillConvexPoly(self.owners, polygon, owner, cv2.LINE_8)

    def tint(self, polygon: Polygon | None, colour: Colour) -> None:
        """Changes the colour of a convex polygon, but not the owner of its pixels: for a road marking."""
        if polygon is not None:
            cv2.fillConvexPoly(self.rgb, polygon, colour, cv2.LINE_8)

    def line(self, start: Sequence[int], end: Sequence[int], thickness: int, colour: Colour, owner: int) -> None:
        """Draws a straight line with round ends."""
        cv2.line(self.rgb, start, end, colour, thickness, cv2.LINE_8)
        cv2.line(self.owners, start, end, owner, thickness, cv2.LINE_8)

    def stamp(
        self, picture: Image, shape: Image, corner: tuple[float, float], scale: tuple[float, float], owner: int
    ) -> None:
        """Draws an image h×w×3 where `shape`, h×w, is not 0: upper left corner at `corner`, stretched by `scale`."""
        height, width = shape.shape
        left, top = (max(0, int(np.floor(value))) for value in corner)
        right = min(self.owners.shape[1], int(np.ceil(corner[0] + width * scale[0])))
        bottom = min(self.owners.shape[0], int(np.ceil(corner[1] + height * scale[1])))
        if right <= left or bottom <= top:
            return
        matrix = np.array([[scale[0], 0, corner[0] - left], [0, scale[1], corner[1] - top]])
        size = (right - left, bottom - top)
        warped = cv2.warpAffine(picture, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        mask = cv2.warpAffine(shape, matrix, size, flags=cv2.INTER_NEAREST)
        self._lay(np.asarray(warped, np.uint8), np.asarray(mask, np.uint8), left, top, owner)

    def drape(self, picture: Image, corners: npt.NDArray[np.float64], outline: Polygon | None, owner: int) -> None:
        """Draws an image stretched to `corners` (4×2: upper left, upper right, lower right, lower left).

        Only pixels inside `outline`, a convex polygon, are drawn.
        """
        if outline is None:
            return
        left, top = np.maximum(outline.min(axis=0), 0).tolist()
        right = min(self.owners.shape[1], int(outline[:, 0].max()) + 1)
        bottom = min(self.owners.shape[0], int(outline[:, 1].max()) + 1)
        if right <= left or bottom <= top:
            return
        height, width = picture.shape[:2]
        source = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
        matrix = cv2.getPerspectiveTransform(source, (corners - (left, top)).astype(np.float32))
        size = (right - left, bottom - top)
        warped = cv2.warpPerspective(picture, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        mask = np.zeros((size[1], size[0]), np.uint8)
        cv2.fillConvexPoly(mask, outline - np.array([left, top], np.int32), 1, cv2.LINE_8)
        self._lay(np.asarray(warped, np.uint8), mask, left, top, owner)

    def _lay(self, picture: Image, mask: Image, left: int, top: int, owner: int) -> None:
        height, width = mask.shape
        area = np.s_[top : top + height, left : left + width]
        cv2.copyTo(picture, mask, self.rgb[area])
        self.owners[area][mask != 0] = owner
