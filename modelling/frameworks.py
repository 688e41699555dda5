"""Imports Keras after TensorFlow, with the log settings of `cloud.engines.tensorflow.runtime`."""

from importlib import import_module
from typing import Any

from cloud.engines.tensorflow.runtime import tf

# Keras imports TensorFlow, and the first import of TensorFlow decides about its log output.
keras: Any = import_module("keras")

__all__ = ["keras", "tf"]
