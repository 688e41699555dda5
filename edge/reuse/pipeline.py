"""The pipeline of a vehicle with a difference detector or a local model: only frames that need a worker are sent."""

from collections.abc import Callable
from dataclasses import dataclass

from edge.frame_record import FrameRecord
from edge.pipeline import Pipeline, encode
from edge.reuse.local_model import LocalAnswer
from edge.reuse.opening import Reuse
from edge.sinks.sink import Origin
from edge.sinks.writer import SinkWriter
from edge.transports.transport import NO_BROKER, NO_WORKER
from shared import clock
from shared.errors import SkylaneError
from shared.imaging import geometry
from shared.imaging.frames import Frame, Pixels
from shared.messages.results import ModelResult
from shared.reuse.gate import GateComparison, small_grey
from shared.stages import Stage

_POLL_S = 0.2
_FALLBACK_REASONS = (NO_WORKER, NO_BROKER, "window")  # Reasons to drop a frame that the local model answers instead.


@dataclass(frozen=True, slots=True)
class ReusingPipeline(Pipeline):
    """Takes due frames, one at a time, and finds each one a result: an earlier frame's, the local model's or a worker's.

    A frame needs room in the window only when it has to be sent.
    """

    reuse: Reuse
    writer: SinkWriter
    on_result: Callable[[FrameRecord, ModelResult, Origin], None]  # Called with every frame that gets its result here.
    waits_for_room: bool  # A frame waits for room in the window if the loop is closed, and is dropped if it is open.

    def run(self) -> None:
        """Works until the queue is closed and empty, or until stopped; the body of a thread."""
        while self._wait_for_sinks() and (taken := self.queue.take()) is not None:
            record, frame = taken
            self._process(record, frame)
            self.images.passed(record.camera, record.id.sequence)

    def keep(self, record: FrameRecord, answer: ModelResult) -> None:
        """Keeps a result that a model computed for this frame, for later frames of its camera."""
        if self.reuse.gate is not None:
            self.reuse.gate.keep(record.comparison, answer)

    def _wait_for_sinks(self) -> bool:
        """Waits, in a closed loop, while sinks hold many later frames for the result of one; returns False when stopped."""
        while not self.window.is_stopped:
            if not (self.waits_for_room and self.writer.needs_order):
                return True
            if self.ledger.pending_results.wait_until_within(self.writer.max_held, _POLL_S):
                return True
        return False

    def _process(self, record: FrameRecord, frame: Frame) -> None:
        record.times[Stage.TAKEN] = clock.now_ns()
        if record.deadline.is_expired():
            self.ledger.drop(record, "deadline")
            return
        try:
            colour = self._preprocess(frame, record)
        except SkylaneError as error:
            self.ledger.drop(record, f"undecodable: {error}")
            return
        if self._is_reused(record, frame):
            return
        answer = self._local_answer(record, colour) if self.reuse.has_cascade else None
        if answer is not None and answer.is_sure:
            self._answer_locally(record, answer)
        else:
            self._send_or_fall_back(record, colour, answer)

    def _is_reused(self, record: FrameRecord, frame: Frame) -> bool:
        """Compares a frame with an earlier one and presents its result if they are similar."""
        gate, image, plan = self.reuse.gate, record.image, record.geometry
        if gate is None:
            return False
        assert image is not None
        assert plan is not None
        if image.shape[:2] != (plan.target_height, plan.target_width):
            image = geometry.apply(image, plan)  # The worker resizes this frame.
        form = (*frame.pixels.shape[:2], frame.layout)
        small = small_grey(image, self.card.layout)
        compared = gate.compare(record.camera, form, small, sequence=record.id.sequence, time_ns=record.source_ns)
        record.comparison, record.gate_distance = compared, compared.distance
        record.times[Stage.GATED] = clock.now_ns()
        return self._present_reused(record, compared)

    def _is_reused_by_now(self, record: FrameRecord) -> bool:
        """Compares a frame again before it is sent: the result of an earlier frame may have come in the meantime."""
        if self.reuse.gate is None:
            return False
        record.comparison = compared = self.reuse.gate.compare_again(record.comparison)
        record.gate_distance = compared.distance
        if compared.reused is not None:
            record.times[Stage.GATED] = clock.now_ns()
            for later in (Stage.INFERRED_LOCALLY, Stage.ENCODED):  # The gate had the last word.
                record.times.pop(later, None)
            record.local_confidence = None
        return self._present_reused(record, compared)

    def _present_reused(self, record: FrameRecord, compared: GateComparison[ModelResult]) -> bool:
        if compared.reused is None:
            return False
        if self.ledger.reuse(record, compared.reused.sequence).has_result:
            self.on_result(record, compared.reused.result, Origin.REUSED)
        return True

    def _local_answer(self, record: FrameRecord, colour: Pixels) -> LocalAnswer | None:
        local = self.reuse.local
        return local.answer(record, colour) if local is not None and local.model.is_on else None

    def _answer_locally(self, record: FrameRecord, answer: LocalAnswer) -> None:
        local = self.reuse.local
        assert local is not None
        result = local.result(record, answer)
        record.times[Stage.INFERRED_LOCALLY] = clock.now_ns()  # The frame may have waited since the inference.
        if self.ledger.answer_locally(record, local.engine, local.version).has_result:
            self.keep(record, result)
            self.on_result(record, result, Origin.LOCAL)

    def _send_or_fall_back(self, record: FrameRecord, colour: Pixels, answer: LocalAnswer | None) -> None:
        """Sends a frame, or has the local model answer it if it cannot be sent."""
        refusal = self._refusal(record)
        if refusal is None:
            try:
                message = encode(record, self.card, self.config)
            except SkylaneError as error:
                self.ledger.drop(record, f"undecodable: {error}")
                return
            while refusal is None and not self.window.has_room:  # Only in a closed loop.
                is_running = self.window.wait_for_room(unless=self.sender.no_worker_alive)
                refusal = self._refusal(record) if is_running else "stopped"
            if self._is_reused_by_now(record):
                return
            if refusal is None:
                self.sender.send(record, message)
                return
        if refusal in _FALLBACK_REASONS:
            record.times.pop(Stage.ENCODED, None)  # The local model comes before it in the order of the stages.
            answer = answer or self._local_answer(record, colour)
            if answer is not None:
                self._answer_locally(record, answer)
                return
        self.ledger.drop(record, refusal)

    def _refusal(self, record: FrameRecord) -> str | None:
        """Returns the reason why a frame cannot be sent, or None. A full window is a reason in an open loop only."""
        local = self.reuse.local
        if local is not None and local.model.is_on and self._is_cut_off():
            return self.sender.unsent_reason(NO_WORKER)  # At once: the sender would wait for a worker to return.
        refusal = self.sender.refusal(record)
        if refusal is None and not self.waits_for_room and not self.window.has_room:
            return self.sender.unsent_reason("window")
        return refusal

    def _is_cut_off(self) -> bool:
        """Returns whether a frame could not reach a worker now."""
        return not self.sender.transport.is_connected or self.sender.no_worker_alive()
