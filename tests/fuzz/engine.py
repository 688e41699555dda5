"""Runs one target under libFuzzer: `python -m tests.fuzz.engine TARGET [libFuzzer's arguments]`.

A target is a module of `tests.fuzz.targets`. `seeds()` yields valid inputs, `run(data)` parses one and raises only on a
bug, and the optional `mutated(data, seed)` damages an input according to its format.
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
)  # NumPy's own branches are of no interest.


def main(target: str, arguments: list[str]) -> None:
    """Fuzzes until libFuzzer ends the process; the exit code is 0 if nothing was found."""
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        module = importlib.import_module(f"tests.fuzz.targets.{target}")

    def mutate(data: bytes, max_bytes: int, seed: int) -> bytes:
        if seed % 2:
            return bytes(atheris.Mutate(data, max_bytes))
        return bytes(module.mutated(data, seed)[:max_bytes])

    options = {"custom_mutator": mutate} if hasattr(module, "mutated") else {}
    command = f"{sys.executable} -m tests.fuzz.engine {target}"  # libFuzzer restarts itself to merge a corpus.
    atheris.Setup([command, *arguments], module.run, **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
