"""Writes the mask of an image: python send.py HOST:PORT MODEL IMAGE MASK.png (tritonclient[grpc], OpenCV)."""

import sys
from pathlib import Path

import cv2
import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

address, model, source, target = sys.argv[1:]
image = InferInput("image_bytes", [1], "BYTES")
image.set_data_from_numpy(np.array([Path(source).read_bytes()], object))
try:
    answer = InferenceServerClient(address).infer(model, [image], outputs=[InferRequestedOutput("mask")])
except InferenceServerException as error:
    sys.exit(str(error))  # For example: the model is not served, the file is not an image, the worker is overloaded.
cv2.imwrite(target, answer.as_numpy("mask")[0])  # The class id of every pixel, in the model's size.
