"""Runs one target under libFuzzer, in a process of its own: `python -m tests.fuzz.engine TARGET [libFuzzer's arguments]`.

A target is a module of `tests.fuzz.targets`: `seeds()` yields valid inputs, `run(data)` reads one and lets nothing
out but a finding, and `mutated(data, seed)`, where it has one, damages an input in the way of its format.
"""

import importlib
import sys

import atheris

INSTRUMENTED = (
    "shared",
    "cloud",
    "edge",
    "rosbag_tools",
    "rosbags",
    "yaml",
    "python_multipart",
)  # To follow NumPy would tell little.


def main(target: str, arguments: list[str]) -> None:
    """Fuzz until libFuzzer ends the process: with 0 where nothing was found."""
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        module = importlib.import_module(f"tests.fuzz.targets.{target}")

    def mutated(data: bytes, most_bytes: int, seed: int) -> bytes:
        if seed % 2:
            return bytes(atheris.Mutate(data, most_bytes))
        return bytes(module.mutated(data, seed)[:most_bytes])

    own_way = {"custom_mutator": mutated} if hasattr(module, "mutated") else {}
    again = f"{sys.executable} -m tests.fuzz.engine {target}"  # libFuzzer starts itself by it, to merge a corpus.
    atheris.Setup([again, *arguments], module.run, **own_way)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
