"""The folder of a study and its manifest: plan, runs and results, from which an interrupted study is resumed."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from analysis.study.measurement import DONE, FAILED, SKIPPED, RunResult
from analysis.study.study_plan import StudyCell, StudyPlan, axis_values, cells
from shared import clock
from shared.config import read_yaml
from shared.errors import SkylaneError
from shared.files import file_sha256, make_folder, new_file, read_file, write_file
from shared.runlog.run_manifest import read_manifest, write_manifest
from shared.runtime.machine import commit, machine

RUNNING, COMPLETE, INTERRUPTED = "running", "complete", "interrupted"


def initial_manifest(plan: StudyPlan, file: Path, seed: int, planned: int) -> dict[str, Any]:
    """Returns the manifest at the start of a study."""
    return {
        "kind": "study",
        "name": plan.name,
        "description": plan.description,
        "seed": seed,
        "state": RUNNING,
        "started_ns": clock.now_ns(),
        "ended_ns": None,
        "commit": commit(),
        "host": machine(),
        "file": str(file),
        "file_sha256": file_sha256(file),
        "axes": axis_values(cells(plan)),
        **({} if plan.report.price_per_hour is None else {"tariff": plan.report.model_dump()}),
        "planned": planned,
        **state_counts(()),
    }


def final_manifest(manifest: dict[str, Any], results: Iterable[RunResult], state: str) -> dict[str, Any]:
    """Returns the manifest at the end or interruption of a study."""
    return {**manifest, "state": state, "ended_ns": clock.now_ns(), **state_counts(results)}


def state_counts(results: Iterable[RunResult]) -> dict[str, int]:
    """Returns the number of runs in each final state."""
    states = [result.state for result in results]
    return {state: states.count(state) for state in (DONE, SKIPPED, FAILED)}


PLAN_NAME = "study.yaml"
RESULT_NAME = "result.json"
KIND = "study"


class StudyError(SkylaneError):
    """The folder of a study cannot be used."""


class StudyFolder:
    """A folder with `study.yaml`, `manifest.json` and `cells/<cell>/<repetition>/`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def models(self) -> Path:
        """Folder of the models that were made for this study."""
        return self.root / "models"

    def resumed_seed(self, plan: StudyPlan, seed: int | None) -> int | None:
        """Returns the seed of the study in the folder, to resume it; None if the folder is new.

        Raises:
            StudyError: The folder contains something else, or a study with another plan or seed. The message lists the
                differences.
        """
        if not self.root.exists() or not any(self.root.iterdir()):
            return None
        if not (self.root / PLAN_NAME).is_file():
            raise StudyError(f"{self.root} contains files that are not of a study: choose another --out")
        before = read_yaml(self.root / PLAN_NAME, StudyPlan)
        changes = list(_differences(_document(before), _document(plan)))
        if changes:
            raise StudyError(
                f"{self.root} contains this study with another plan ({'; '.join(changes)}): "
                "choose another --out, or undo the changes to resume it"
            )
        known = int(read_manifest(self.root)["seed"])
        if seed is not None and seed != known:
            raise StudyError(f"{self.root} contains this study with seed {known}: omit --seed, or choose another --out")
        return known

    def begin(self, plan: StudyPlan, manifest: Mapping[str, Any]) -> None:
        """Creates the folder and writes the manifest and the plan with all its defaults."""
        self.root.mkdir(parents=True, exist_ok=True)
        write_manifest(self.root, manifest)
        text = yaml.safe_dump(_document(plan), sort_keys=False, allow_unicode=True, default_flow_style=None)
        write_file(self.root / PLAN_NAME, text)

    def run_folder(self, cell: StudyCell, repetition: int) -> Path:
        """Returns the folder of a run."""
        return self.root / "cells" / cell.name / str(repetition)

    def empty_run_folder(self, cell: StudyCell, repetition: int) -> Path:
        """Creates the folder of a run; removes the files of an interrupted or failed one.

        Raises:
            StudyError: The old folder cannot be removed, or the new one cannot be created.
        """
        folder = self.run_folder(cell, repetition)
        try:
            make_folder(folder.parent, self.root)
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir()
        except OSError as error:
            raise StudyError(
                f"{folder} cannot be replaced: {error.strerror}: free disk space or make it writable, "
                "then run the study again"
            ) from error
        return folder

    def load_result(self, cell: StudyCell, repetition: int) -> RunResult | None:
        """Reads the result of a run; None if the run has not ended.

        Raises:
            StudyError: The result cannot be read.
        """
        path = self.run_folder(cell, repetition) / RESULT_NAME
        try:
            return msgspec.json.decode(read_file(path), type=RunResult)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise StudyError(f"{path} cannot be read ({error}): remove it to repeat the run") from error

    def save_result(self, cell: StudyCell, repetition: int, result: RunResult) -> None:
        """Writes the result of a run atomically, after all its other files; a run without result is repeated.

        Raises:
            StudyError: The result cannot be written.
        """
        path = self.run_folder(cell, repetition) / RESULT_NAME
        try:
            with new_file(path, self.root) as file:
                file.write(msgspec.json.format(msgspec.json.encode(result), indent=2))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StudyError(
                f"{path} cannot be written: {error.strerror}: free disk space, then run the study again"
            ) from error


def _document(plan: StudyPlan) -> dict[str, Any]:
    """Converts a plan to JSON types, without values that are None."""
    return plan.model_dump(mode="json", exclude_none=True)


def _differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    """Yields the changes between two documents as `key: before → now`."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in dict.fromkeys((*before, *now)):
            yield from _differences(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif before != now and key != "description":
        yield f"{key}: {_short(before)} → {_short(now)}"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_short(item) for item in value) + "]"
    if isinstance(value, dict):
        return str(
            value.get("name") or "{" + ", ".join(f"{name}: {_short(item)}" for name, item in value.items()) + "}"
        )
    return "nothing" if value is None else str(value)
