"""`python -m tests.fuzz.run`: coverage-guided fuzzing of what reads foreign bytes, for a time, with its corpus kept.

Needs atheris, which is part of the extra `dev`. Exits with 1 where something was found, and names the input.
"""

import argparse
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.fuzz.corpus import MOST_BYTES, ROOT, TARGETS, corpus, crashes, inputs, store, target

_INPUT_S = 10  # What takes longer on one input is a finding,
_MEMORY_MB = 1024  # and so is what takes more.
_MERGE_S = 300


@dataclass(frozen=True, slots=True)
class Figures:
    """What libFuzzer says of a run."""

    executions: int
    features: int
    peak_mb: int

    @classmethod
    def of(cls, said: str) -> Self:
        """As they stand in its output."""
        features = re.findall(r"\bft: (\d+)", said)
        return cls(
            _stat(said, "number_of_executed_units"), int(features[-1]) if features else 0, _stat(said, "peak_rss_mb")
        )


def fuzz(name: str, seconds: int, seed: int, *, keep: bool = False) -> list[Path]:
    """Fuzz one target; returns the inputs that something came of, none where all went well.

    `keep`: have what it reached become the corpus of the repository, where nothing was found.
    """
    kept, found = corpus(name), crashes(name)
    found.mkdir(parents=True, exist_ok=True)
    before = set(inputs(found))
    with tempfile.TemporaryDirectory(prefix="skylane-corpus-") as temporary:
        grown = Path(temporary)
        for path in inputs(kept) if kept.is_dir() else []:
            store(grown, path.read_bytes())
        for data in target(name).seeds():
            store(grown, data)
        said = _engine(name, grown, f"-max_total_time={seconds}", f"-seed={seed}", f"-artifact_prefix={found}/")
        fresh = sorted(set(inputs(found)) - before)
        figures = Figures.of(said)
        if keep and not fresh and figures.executions:
            _keep_smallest(name, grown, kept)
    told = f"{name}: {figures.executions:,} executions, {figures.features:,} features covered, {figures.peak_mb} MB at most"
    size = sum(path.stat().st_size for path in inputs(kept)) if kept.is_dir() else 0
    sys.stdout.write(f"{told}; corpus of {len(inputs(kept))} inputs, {size:,} bytes (seed {seed})\n")
    if not fresh and not figures.executions:
        sys.stdout.write(f"{said[-4000:]}\n")
        raise SystemExit(f"libFuzzer did not run {name}")
    for path in fresh:
        sys.stdout.write(f"{said[-4000:]}\nFOUND {path}: python -m tests.fuzz.engine {name} {path}\n")
    return fresh


def _engine(name: str, folder: Path, *flags: str, limit_s: int | None = None) -> str:
    """Everything that libFuzzer says."""
    usual = (
        f"-max_len={target(name).MAX_BYTES}",
        f"-timeout={_INPUT_S}",
        f"-rss_limit_mb={_MEMORY_MB}",
        "-print_final_stats=1",
        "-verbosity=1",
    )
    command = [sys.executable, "-m", "tests.fuzz.engine", name, str(folder), *usual, *flags]
    ended = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, cwd=ROOT.parents[1], timeout=limit_s
    )
    return ended.stdout + ended.stderr


def _keep_smallest(name: str, grown: Path, kept: Path) -> None:
    """Replace the corpus by the smallest inputs that reach all that was reached, as far as `MOST_BYTES` goes."""
    with tempfile.TemporaryDirectory(prefix="skylane-merged-") as temporary:
        merged = Path(temporary)
        _engine(name, merged, str(grown), "-merge=1", limit_s=_MERGE_S)
        if not inputs(merged):
            return
        shutil.rmtree(kept, ignore_errors=True)
        size = 0
        for path in inputs(merged):
            size += path.stat().st_size
            if size > MOST_BYTES:
                break
            store(kept, path.read_bytes())


def _stat(said: str, name: str) -> int:
    found = re.search(rf"stat::{name}:\s+(\d+)", said)
    return int(found.group(1)) if found else 0


def main() -> None:
    """Fuzz the targets one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--seconds", type=int, default=120, help="for each target")
    parser.add_argument("--target", choices=TARGETS, action="append", help="this one only; may be given again")
    parser.add_argument("--seed", type=int, help="of libFuzzer's choices; drawn, and printed")
    parser.add_argument("--keep", action="store_true", help="let the corpus in the repository grow by what was reached")
    arguments = parser.parse_args()
    seed = secrets.randbits(31) if arguments.seed is None else arguments.seed
    found = [
        path
        for name in arguments.target or TARGETS
        for path in fuzz(name, arguments.seconds, seed, keep=arguments.keep)
    ]
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
