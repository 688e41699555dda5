"""`python -m tests.fuzz.run`: coverage-guided fuzzing of all parsers of untrusted input, for a limited time.

Needs atheris, part of the extra `dev`. If an input fails, its path is printed and the exit code is 1.
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

from tests.fuzz.corpus import MAX_CORPUS_BYTES, ROOT, TARGETS, corpus, crashes, inputs, store, target

_INPUT_TIMEOUT_S = 10  # A slower input counts as a finding.
_MEMORY_LIMIT_MB = 1024  # An input that needs more memory counts as a finding too.
_MERGE_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class FuzzStatistics:
    """The statistics that libFuzzer prints at the end of a run."""

    executions: int
    features: int
    peak_mb: int

    @classmethod
    def parse(cls, output: str) -> Self:
        """Parses libFuzzer's output."""
        features = re.findall(r"\bft: (\d+)", output)
        return cls(
            _stat(output, "number_of_executed_units"),
            int(features[-1]) if features else 0,
            _stat(output, "peak_rss_mb"),
        )


def fuzz(name: str, seconds: int, seed: int, *, keep: bool = False) -> list[Path]:
    """Fuzzes one target and returns the inputs that failed.

    `keep`: replaces the corpus of the repository by the inputs that reached the most code, unless one failed.
    """
    stored, failed = corpus(name), crashes(name)
    failed.mkdir(parents=True, exist_ok=True)
    before = set(inputs(failed))
    with tempfile.TemporaryDirectory(prefix="skylane-corpus-") as temporary:
        grown = Path(temporary)
        for path in inputs(stored) if stored.is_dir() else []:
            store(grown, path.read_bytes())
        for data in target(name).seeds():
            store(grown, data)
        output = _run_engine(name, grown, f"-max_total_time={seconds}", f"-seed={seed}", f"-artifact_prefix={failed}/")
        new_failures = sorted(set(inputs(failed)) - before)
        statistics = FuzzStatistics.parse(output)
        if keep and not new_failures and statistics.executions:
            _update_corpus(name, grown, stored)
    summary = (
        f"{name}: {statistics.executions:,} executions, {statistics.features:,} features covered,"
        f" peak memory {statistics.peak_mb} MB"
    )
    size = sum(path.stat().st_size for path in inputs(stored)) if stored.is_dir() else 0
    sys.stdout.write(f"{summary}; corpus of {len(inputs(stored))} inputs, {size:,} bytes (seed {seed})\n")
    if not new_failures and not statistics.executions:
        sys.stdout.write(f"{output[-4000:]}\n")
        raise SystemExit(f"libFuzzer did not run {name}")
    for path in new_failures:
        sys.stdout.write(f"{output[-4000:]}\nFOUND {path}: python -m tests.fuzz.engine {name} {path}\n")
    return new_failures


def _run_engine(name: str, folder: Path, *flags: str, limit_s: int | None = None) -> str:
    """Runs libFuzzer in a subprocess and returns its output."""
    common = (
        f"-max_len={target(name).MAX_BYTES}",
        f"-timeout={_INPUT_TIMEOUT_S}",
        f"-rss_limit_mb={_MEMORY_LIMIT_MB}",
        "-print_final_stats=1",
        "-verbosity=1",
    )
    command = [sys.executable, "-m", "tests.fuzz.engine", name, str(folder), *common, *flags]
    process = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, cwd=ROOT.parents[1], timeout=limit_s
    )
    return process.stdout + process.stderr


def _update_corpus(name: str, grown: Path, stored: Path) -> None:
    """Replaces the corpus by the smallest inputs that reach the same code, up to `MAX_CORPUS_BYTES`."""
    with tempfile.TemporaryDirectory(prefix="skylane-merged-") as temporary:
        merged = Path(temporary)
        _run_engine(name, merged, str(grown), "-set_cover_merge=1", limit_s=_MERGE_TIMEOUT_S)
        if not inputs(merged):
            return
        shutil.rmtree(stored, ignore_errors=True)
        size = 0
        for path in inputs(merged):
            size += path.stat().st_size
            if size > MAX_CORPUS_BYTES:
                break
            store(stored, path.read_bytes())


def _stat(output: str, name: str) -> int:
    found = re.search(rf"stat::{name}:\s+(\d+)", output)
    return int(found.group(1)) if found else 0


def main() -> None:
    """Fuzzes the targets one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--seconds", type=int, default=120, help="Duration per target in seconds.")
    parser.add_argument(
        "--target", choices=TARGETS, action="append", help="Target to fuzz; all by default (repeatable)."
    )
    parser.add_argument("--seed", type=int, help="Random seed of libFuzzer; chosen and printed by default.")
    parser.add_argument("--keep", action="store_true", help="Update the corpus in the repository.")
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
