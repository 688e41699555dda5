"""Post-processing: from the model's class ids to the mask that was asked for, beside the next inference."""

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
from shared.threads import Handover

_BACKLOG = 16
UNSEEN = 255  # The class id of what the model never saw, where the frame was cropped.


class Postprocessor:
    """Lays masks back where the frame's size was asked for, encodes and answers."""

    def __init__(self, replier: Replier, cards: Mapping[str, ModelCard]) -> None:
        self._replier = replier
        self._cards = cards
        self._handover: Handover[tuple[Request, npt.NDArray[np.uint8]]] = Handover(_BACKLOG)

    def put(self, request: Request, mask: npt.NDArray[np.uint8]) -> None:
        """Queue an inferred frame with its class ids, H×W uint8."""
        self._handover.put((request, mask))

    def close(self) -> None:
        """No more frames will come."""
        self._handover.close()

    def run(self) -> None:
        """Answer until closed; the body of the post-processing thread."""
        with self._handover.reader() as get:
            while (item := get()) is not None:
                self._answer(*item)

    def _answer(self, request: Request, mask: npt.NDArray[np.uint8]) -> None:
        assert request.message is not None
        try:
            if request.message.want.size == "frame":
                mask = lay_back(mask, request.message.geometry, UNSEEN)
            request.stamp(Stage.POSTPROCESSED)
            self._replier.mask(request, self._cards[request.model], mask)
        except SkylaneError as error:
            self._replier.refuse(request, Status.REJECTED, str(error))
