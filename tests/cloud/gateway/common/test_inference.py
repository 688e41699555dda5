"""Inference calls, independent of TensorFlow Serving and the Open Inference Protocol."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cloud.gateway.common.inference import (
    CallTerms,
    InferenceCall,
    InferenceReply,
    PendingInference,
    server_timing,
    start_inference,
)
from cloud.gateway.common.tensors import IMAGES, INPUT, RESULTS
from cloud.serving.batching import Batcher
from cloud.serving.errors import ApiError, ErrorCode
from cloud.serving.request import Request
from cloud.serving.submission import Submission
from shared import clock
from shared.clock import Deadline
from shared.imaging import image_codecs
from shared.imaging.frames import Layout
from shared.inference.engine import Outputs
from shared.messages.frame import Status
from tests.support.gateway import WAIT_S, Gate, GatewayWorker, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, Engine, frame, model, tensor_model


@pytest.fixture(name="gate")
def _gate() -> Gate:
    return Gate()


@pytest.fixture(name="worker")
def _worker(gate: Gate) -> Iterator[GatewayWorker]:
    with open_gateway(model(gate), http=None, max_frames=4) as worker:
        yield worker


@pytest.fixture(name="submission")
def _submission(worker: GatewayWorker) -> Submission:
    return worker.node.submission


def random_pixels(count: int) -> npt.NDArray[np.uint8]:
    """Images of the model's size."""
    return np.random.default_rng(count).integers(0, 256, (count, HEIGHT, WIDTH, 3), np.uint8)


def call(inputs: dict[str, Any], model: str = "tiny", **options: Any) -> InferenceCall:
    """A call; `options` are fields of its terms or of the call."""
    terms = CallTerms("test", "car", clock.now_ns(), 1 << 20)
    fields = {name: options.pop(name) for name in (*options,) if hasattr(terms, name)}
    return InferenceCall(replace(terms, **fields), model, inputs, **options)


def wait(pending: PendingInference) -> InferenceReply:
    """The reply, once all frames are answered."""
    for future in pending.futures:
        future.result(WAIT_S)
    return pending.reply()


def infer(submission: Submission, inputs: dict[str, Any], **options: Any) -> InferenceReply:
    """The reply to a call."""
    return wait(start_inference(submission, call(inputs, **options)))


def test_outputs_are_those_of_the_model(submission: Submission) -> None:
    """They equal the direct call bit by bit, and each image keeps its position."""
    pixels = random_pixels(3)
    reply = infer(submission, {INPUT: pixels})
    assert list(reply.outputs) == ["mask"]
    np.testing.assert_array_equal(reply.outputs["mask"], pixels[..., 0])


@pytest.mark.parametrize("codec", ["lz4", None])
def test_encoded_images_are_decoded(submission: Submission, codec: str | None) -> None:
    """The codec is the one that the call names, or is detected from the image."""
    pixels = random_pixels(2)
    data = [bytes(image_codecs.encode(image, Layout.RGB8, codec or "png", 85)) for image in pixels]
    reply = infer(submission, {IMAGES: data}, codec=codec)
    np.testing.assert_array_equal(reply.outputs["mask"], pixels[..., 0])


def test_an_image_of_another_size_is_resized_for_the_model(submission: Submission) -> None:
    """Frames over MQTT are resized in the same way."""
    large = np.full((3 * HEIGHT, 2 * WIDTH, 3), 77, np.uint8)
    reply = infer(submission, {IMAGES: [bytes(image_codecs.encode(large, Layout.RGB8, "png", 85))]})
    np.testing.assert_array_equal(reply.outputs["mask"], np.full((1, HEIGHT, WIDTH), 77, np.uint8))


def test_packed_results_are_returned_on_request(submission: Submission) -> None:
    """A mask as PNG has a fiftieth of the size of its numbers."""
    pixels = random_pixels(2)
    reply = infer(submission, {INPUT: pixels}, outputs=(RESULTS,))
    for data, image in zip(reply.outputs[RESULTS], pixels, strict=True):
        np.testing.assert_array_equal(image_codecs.decode_mask(bytes(data), "png", (HEIGHT, WIDTH)), image[..., 0])


def test_a_vehicle_receives_the_status_of_its_frame(submission: Submission) -> None:
    """A vehicle logs the mask message with its time stamps, whatever the protocol."""
    message = frame(5)
    reply = infer(submission, {IMAGES: [message.data]}, frame=message)
    assert (reply.first.id, reply.first.status) == (message.id, Status.ANSWERED)
    np.testing.assert_array_equal(image_codecs.decode_mask(bytes(reply.outputs[RESULTS][0]), "raw", (HEIGHT, WIDTH)), 5)
    rejected = infer(submission, {IMAGES: [b"short"]}, frame=message)
    assert rejected.first.status is Status.REJECTED
    assert not rejected.outputs


def test_server_timing_has_every_stage_of_the_worker(submission: Submission) -> None:
    """Browsers and proxies can read this format."""
    reply = infer(submission, {INPUT: random_pixels(1)})
    stages = [part.split(";dur=") for part in server_timing(reply.first).split(", ")]
    assert [name for name, _ in stages] == [
        "dequeued", "decoded", "batched", "inferred", "postprocessed", "mask_encoded", "replied"
    ]  # fmt: skip
    assert all(float(duration) >= 0 for _, duration in stages)


INVALID, FORBIDDEN, UNPROCESSABLE = ErrorCode.INVALID, ErrorCode.FORBIDDEN, ErrorCode.UNPROCESSABLE
ONE = random_pixels(1)


@pytest.mark.parametrize(
    ("inputs", "options", "code", "message"),
    [
        ({}, {}, INVALID, "inputs none: send either input"),
        ({"picture": ONE}, {}, INVALID, "inputs picture"),
        ({INPUT: ONE, IMAGES: [b""]}, {}, INVALID, "send either input"),
        ({INPUT: ONE.astype(np.float32)}, {}, INVALID, r"input is float32: send uint8, \[n, 4, 6, 3\]"),
        ({INPUT: ONE[0]}, {}, INVALID, r"shape \[4, 6, 3\]: send \[n, 4, 6, 3\]"),
        ({INPUT: ONE[:, 1:]}, {}, INVALID, r"shape \[1, 3, 6, 3\]"),
        ({INPUT: random_pixels(0)}, {}, INVALID, "no image: send"),
        ({INPUT: random_pixels(5)}, {}, INVALID, "at most 4"),
        ({INPUT: [b""]}, {}, INVALID, "input is strings"),
        ({IMAGES: ONE}, {}, INVALID, "image_bytes is uint8"),
        ({IMAGES: [b"GIF89a"]}, {}, UNPROCESSABLE, "send a JPEG or a PNG"),
        ({IMAGES: [b""]}, {"codec": "webp"}, INVALID, "no image codec 'webp'"),
        ({IMAGES: [b"12345"]}, {"codec": "raw"}, UNPROCESSABLE, "has 5 bytes"),
        ({INPUT: ONE}, {"model": "large"}, ErrorCode.NOT_FOUND, "large is not served"),
        ({INPUT: ONE}, {"version": "9"}, ErrorCode.NOT_FOUND, "tiny version 9"),
        ({INPUT: ONE}, {"outputs": ("boxes",)}, INVALID, "no output boxes: request mask"),
        ({INPUT: ONE}, {"max_reply_bytes": 3}, UNPROCESSABLE, "outputs of 24 bytes"),
        ({INPUT: ONE}, {"deadline": Deadline(0)}, ErrorCode.LATE, "deadline"),
        ({IMAGES: [b"", b""]}, {"frame": frame(1)}, INVALID, "2 images with one frame message"),
        ({IMAGES: [b""]}, {"frame": frame(1), "caller": "thief"}, FORBIDDEN, "the frame belongs to car"),
        ({IMAGES: [b""]}, {"frame": frame(1, "other")}, INVALID, "send the same model"),
        ({IMAGES: [b""]}, {"frame": frame(1), "version": "1"}, INVALID, "for tiny, the call for tiny 1: send"),
    ],
)
def test_an_error_says_what_is_wrong_and_what_is_expected(
    submission: Submission, inputs: dict[str, Any], options: dict[str, Any], code: ErrorCode, message: str
) -> None:
    """Authenticator must be able to correct a call without reading the source."""
    with pytest.raises(ApiError, match=message) as raised:
        infer(submission, inputs, **options)
    assert raised.value.code is code


def test_a_cancelled_call_is_not_inferred(worker: GatewayWorker, submission: Submission, gate: Gate) -> None:
    """Clients that disconnect must not occupy the engine."""
    gate.close()
    first = start_inference(submission, call({INPUT: ONE}))
    assert gate.reached.wait(WAIT_S)
    cancelled = [start_inference(submission, call({INPUT: ONE})) for _ in range(3)]
    while submission.admission.depth == len(
        cancelled
    ):  # Until one has left the queue, and only the engine's thread can drop it.
        time.sleep(0.001)
    for pending in cancelled:
        pending.cancel()
    gate.open()
    first.futures[0].result(WAIT_S)
    infer(submission, {INPUT: ONE})
    assert worker.node.counts["answered"] == 2
    assert worker.node.counts["expired"] == 3


def test_a_call_beyond_the_queue_fails_as_busy(submission: Submission, gate: Gate) -> None:
    """Overload must cost an error, not memory; all frontends share the queue."""
    gate.close()
    calls = [start_inference(submission, call({INPUT: ONE})) for _ in range(12)]
    gate.open()
    codes: list[ErrorCode | None] = []
    for pending in calls:
        try:
            wait(pending)
            codes.append(None)
        except ApiError as error:
            codes.append(error.code)
    assert codes.count(ErrorCode.BUSY) >= 5
    assert set(codes) == {None, ErrorCode.BUSY}


class SingleImageEngine(Engine):
    """Infers one image at a time, so that the other frames certainly wait."""

    batch_size = 1

    def __init__(self, head: str, act: Callable[[], None] = lambda: None) -> None:
        super().__init__(act)
        self._head = head

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        """See Engine."""
        return {self._head: super().infer(batch)["mask"]}


@pytest.mark.parametrize("has_same_outputs", [True, False])
def test_a_reply_names_the_version_that_answered(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, *, has_same_outputs: bool
) -> None:
    """Versions are swapped under load: a reply must not be attributed to the wrong version, nor mix two."""
    head = "one" if has_same_outputs else "other"
    older = tensor_model(SingleImageEngine("one", gate), ["one"])
    newer = tensor_model(SingleImageEngine(head), [head], version="2")
    decoded, put = threading.Semaphore(0), Batcher.put

    def put_and_count(batcher: Batcher, request: Request) -> None:
        put(batcher, request)
        decoded.release()

    monkeypatch.setattr(Batcher, "put", put_and_count)
    with open_gateway(older, grpc="127.0.0.1:0") as worker:
        gate.close()
        node, submission = worker.node, worker.node.submission
        first = start_inference(submission, call({INPUT: ONE}))
        assert gate.reached.wait(WAIT_S)
        waiting = [start_inference(submission, call({INPUT: random_pixels(2)})) for _ in range(3)]
        assert all(decoded.acquire(timeout=WAIT_S) for _ in range(2))  # The first, and one that waits behind it.
        (replaced,) = node.served_models.set_current(node.start_serving(newer))
        gate.open()
        assert replaced.close()
        assert wait(first).card.version == "1"
        if has_same_outputs:
            assert wait(waiting[-1]).card.version == "2"
        else:
            with pytest.raises(ApiError, match="call again") as raised:
                wait(waiting[-1])
            assert raised.value.code is ErrorCode.BUSY
        with pytest.raises(ApiError, match="call again"):  # One image was decoded for the old version.
            wait(waiting[0])


def test_a_model_that_is_being_unloaded_rejects_frames_and_answers_earlier_ones(
    worker: GatewayWorker, gate: Gate
) -> None:
    """Frames that keep arriving, also through Skylane's own protocol, would otherwise delay the unloading."""
    gate.close()
    submission = worker.node.submission
    pending = start_inference(submission, call({INPUT: ONE}))
    assert gate.reached.wait(WAIT_S)
    seen = submission.wait_for_change(0, 0.0, lambda: False)
    submission.remove_model("tiny")
    assert submission.wait_for_change(seen, WAIT_S, lambda: False) > seen
    assert not submission.status.cards
    with pytest.raises(ApiError, match="unloaded") as raised:
        submission.put(frame(1), received_ns=clock.now_ns(), max_reply_bytes=1 << 20)
    assert raised.value.code is ErrorCode.NOT_FOUND
    gate.open()
    assert worker.node.in_flight.wait_until_idle("tiny", WAIT_S)
    assert pending.futures[0].done()
    pending.reply()


def test_an_open_stream_with_rejected_frames_does_not_delay_unloading(worker: GatewayWorker, gate: Gate) -> None:
    """The stream's own thread answers them while its call continues; they must count as answered at once."""
    gate.close()
    submission = worker.node.submission
    answered, finished = threading.Event(), threading.Event()
    statuses: list[Status] = []

    def stream() -> None:
        futures = [submission.put(frame(1), received_ns=clock.now_ns(), max_reply_bytes=1 << 20) for _ in range(16)]
        gate.open()
        statuses.extend(future.result(WAIT_S).message.status for future in futures)
        answered.set()
        finished.wait(WAIT_S)

    thread = threading.Thread(target=stream)
    thread.start()
    assert answered.wait(WAIT_S)
    submission.remove_model("tiny")
    assert worker.node.in_flight.wait_until_idle("tiny", WAIT_S)
    assert set(statuses) == {Status.ANSWERED, Status.OVERLOADED}
    finished.set()
    thread.join(WAIT_S)


@pytest.mark.parametrize("outputs", [("mask",), (RESULTS,)])
def test_replies_that_are_too_large_together_fail(submission: Submission, outputs: tuple[str, ...]) -> None:
    """Each is within the limit, but sixty-four replies of a model with large outputs would take gigabytes."""
    one = infer(submission, {INPUT: ONE}, outputs=outputs).outputs[outputs[0]]
    limit = max(HEIGHT * WIDTH, len(one[0]))
    assert infer(submission, {INPUT: ONE}, outputs=outputs, max_reply_bytes=limit).outputs
    with pytest.raises(ApiError, match=f"more than {limit} bytes: request fewer") as raised:
        infer(submission, {INPUT: random_pixels(4)}, outputs=outputs, max_reply_bytes=limit)
    assert raised.value.code is ErrorCode.UNPROCESSABLE
