"""The step of the pipeline that finds results at the vehicle: of an earlier frame, or of the local model."""

from dataclasses import dataclass

from edge.frame_record import FrameRecord
from edge.ledger import Ledger
from edge.reuse.local_model import LocalAnswer
from edge.reuse.opening import Reuse
from edge.sender import InFlightWindow
from edge.sinks.writer import SinkWriter
from shared import clock
from shared.imaging import geometry
from shared.imaging.frames import Frame, Pixels
from shared.messages.model_card import ModelCard
from shared.messages.results import ModelResult
from shared.reuse.gate import GateComparison, small_grey
from shared.runlog.latency_log import Outcome
from shared.stages import Stage

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class ReuseStep:
    """Ends frames that need not or cannot be sent. Called by the thread of the pipeline."""

    reuse: Reuse
    ledger: Ledger
    writer: SinkWriter
    card: ModelCard
    waits_for_room: bool  # True in a closed loop; in an open loop, a frame without room is dropped.

    @property
    def has_cascade(self) -> bool:
        """True if the local model also answers frames that could be sent."""
        return self.reuse.has_cascade

    @property
    def has_local(self) -> bool:
        """True if there is a local model that is not paused."""
        return self.reuse.local is not None and self.reuse.local.model.is_on

    def wait_for_sinks(self, window: InFlightWindow) -> bool:
        """Waits, in a closed loop, while sinks hold many later frames for the result of one; returns False when stopped."""
        while not window.is_stopped:
            if not (self.waits_for_room and self.writer.needs_order):
                return True
            if self.ledger.wait_until_within(self.writer.max_held, _POLL_S):
                return True
        return False

    def compare(self, record: FrameRecord, frame: Frame) -> bool:
        """Ends a preprocessed frame with the result of an earlier one if they are similar; returns whether they are."""
        gate, image, plan = self.reuse.gate, record.image, record.geometry
        if gate is None:
            return False
        assert image is not None
        assert plan is not None
        if image.shape[:2] != (plan.target_height, plan.target_width):
            image = geometry.apply(image, plan)  # The worker resizes this frame.
        form = (*frame.pixels.shape[:2], frame.layout)
        small = small_grey(image, self.card.layout)
        row = record.row
        compared = gate.compare(row.camera, form, small, sequence=row.sequence, time_ns=row.source_ns)
        record.comparison, row.gate_distance = compared, compared.distance
        record.times[Stage.GATED] = clock.now_ns()
        return self._is_reused(record, compared)

    def compare_again(self, record: FrameRecord) -> bool:
        """Compares a frame again before it is sent: the result of an earlier frame may have come in the meantime."""
        if self.reuse.gate is None:
            return False
        record.comparison = compared = self.reuse.gate.compare_again(record.comparison)
        record.row.gate_distance = compared.distance
        if compared.reused is not None:
            record.times[Stage.GATED] = clock.now_ns()
            for later in (Stage.INFERRED_LOCALLY, Stage.ENCODED):  # The last stage is then that of the gate.
                record.times.pop(later, None)
            record.row.local_confidence = None
        return self._is_reused(record, compared)

    def infer(self, record: FrameRecord, colour: Pixels) -> LocalAnswer | None:
        """Runs the local model on a preprocessed frame; returns None without a model, or if it is paused or fails.

        `colour`: the demosaiced frame in the colour order of the model of the run.
        """
        local = self.reuse.local
        return local.answer(record, colour) if local is not None and local.model.is_on else None

    def answer(self, record: FrameRecord, answer: LocalAnswer) -> None:
        """Ends a frame with the result of the local model."""
        local = self.reuse.local
        assert local is not None
        result = local.result(record, answer)
        record.times[Stage.INFERRED_LOCALLY] = clock.now_ns()  # The frame may have waited since the inference.
        self.ledger.answer_locally(record, result)

    def ended(self, record: FrameRecord, result: ModelResult | None) -> None:
        """Keeps a result that a model computed for a frame, for later frames of its camera. See FrameListener."""
        if self.reuse.gate is not None and result is not None and record.row.outcome is not Outcome.REUSED:
            self.reuse.gate.keep(record.comparison, result)

    def _is_reused(self, record: FrameRecord, compared: GateComparison[ModelResult]) -> bool:
        if compared.reused is None:
            return False
        self.ledger.reuse(record, compared.reused.result, compared.reused.sequence)
        return True
