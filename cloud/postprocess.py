"""Post-processing: from the model's class ids to the mask that was asked for, beside the next inference."""

import queue
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from cloud.replies import Replier
from cloud.request import Request
from shared.errors import SkylaneError
from shared.geometry import lay_back
from shared.messages import Status
from shared.model_card import ModelCard
from shared.stages import Stage

UNSEEN = 255  # The class id of what the model never saw, where the frame was cropped.


class Postprocessor:
    """Lays masks back where the frame's size was asked for, encodes and answers."""

    def __init__(self, replier: Replier, cards: Mapping[str, ModelCard]) -> None:
        self._replier = replier
        self._cards = cards
        self._queue: queue.Queue[tuple[Request, npt.NDArray[np.uint8]] | None] = queue.Queue(16)

    def put(self, request: Request, mask: npt.NDArray[np.uint8]) -> None:
        """Queue an inferred frame with its class ids, H×W uint8."""
        self._queue.put((request, mask))

    def close(self) -> None:
        """No more frames will come."""
        self._queue.put(None)

    def run(self) -> None:
        """Answer until closed; the body of the post-processing thread."""
        while (item := self._queue.get()) is not None:
            request, mask = item
            assert request.message is not None
            try:
                if request.message.want.size == "frame":
                    mask = lay_back(mask, request.message.geometry, UNSEEN)
                request.stamp(Stage.POSTPROCESSED)
                self._replier.mask(request, self._cards[request.model], mask)
            except SkylaneError as error:
                self._replier.refuse(request, Status.REJECTED, str(error))
