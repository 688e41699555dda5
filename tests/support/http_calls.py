"""HTTP calls of a worker: detections, and bytes on a bare connection."""

import re
import socket
from typing import Any

import cv2
import httpx
import numpy as np

from tests.support.gateway import WAIT_S, GatewayWorker
from tests.support.tiny_model import HEIGHT, WIDTH

PIXELS = np.full((HEIGHT, WIDTH, 3), 7, np.uint8)
DETECT = b"POST /api/detect HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


def png(pixels: Any) -> bytes:
    """A PNG; the channels are in OpenCV's order, BGR."""
    is_encoded, data = cv2.imencode(".png", pixels)
    assert is_encoded
    return data.tobytes()


def detect(worker: GatewayWorker, **request: Any) -> httpx.Response:
    """Calls `/api/detect`."""
    return httpx.post(f"http://{worker.http}/api/detect", verify=False, timeout=WAIT_S, trust_env=False, **request)


def connect(worker: GatewayWorker) -> socket.socket:
    """Opens a TCP connection."""
    host, _, port = worker.http.partition(":")
    return socket.create_connection((host, int(port)), WAIT_S)


def receive_all(peer: socket.socket) -> bytes:
    """Receives until the server closes the connection."""
    received = b""
    try:
        while piece := peer.recv(1 << 16):
            received += piece
    except ConnectionResetError:
        pass
    return received


def statuses(received: bytes) -> list[int]:
    """The status codes of the responses."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", received)]
