"""A study's folder: its plan and manifest, its runs, and what was finished when it was interrupted."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.study.execution.cell_run import Result
from bench.study.plan.cell import Cell
from bench.study.plan.study_plan import Plan
from shared.config import read_yaml
from shared.errors import SkylaneError
from shared.runlog.run_manifest import read_manifest, write_manifest

PLAN_NAME = "study.yaml"
RESULT_NAME = "result.json"
KIND = "study"


class StudyError(SkylaneError):
    """A study cannot be run in this folder."""


class StudyFolder:
    """`root/study.yaml`, `root/manifest.json` and `root/cells/<cell>/<repetition>/`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def models(self) -> Path:
        """Where the models that only this study wants are built."""
        return self.root / "models"

    def known_seed(self, plan: Plan, seed: int | None) -> int | None:
        """The seed of the study that the folder holds, to go on with it; None where there is none yet.

        Raises:
            StudyError: it holds something else, or a study with another plan (the differences are told) or seed.
        """
        if not self.root.exists() or not any(self.root.iterdir()):
            return None
        if not (self.root / PLAN_NAME).is_file():
            raise StudyError(f"{self.root} holds something else than a study: choose another --out")
        before = read_yaml(self.root / PLAN_NAME, Plan)
        changes = list(_differences(_document(before), _document(plan)))
        if changes:
            raise StudyError(
                f"{self.root} holds this study with another plan ({'; '.join(changes)}): "
                "choose another --out, or take the changes back to go on with it"
            )
        known = int(self.manifest()["seed"])
        if seed is not None and seed != known:
            raise StudyError(
                f"{self.root} holds this study with seed {known}: leave --seed out, or choose another --out"
            )
        return known

    def begin(self, plan: Plan, manifest: Mapping[str, Any]) -> None:
        """Make the folder; write the plan, every default told, and the manifest."""
        self.root.mkdir(parents=True, exist_ok=True)
        write_manifest(self.root, manifest)
        draft = self.root / f"{PLAN_NAME}.new"
        text = yaml.safe_dump(_document(plan), sort_keys=False, allow_unicode=True, default_flow_style=None)
        draft.write_text(text, encoding="utf-8")
        draft.replace(self.root / PLAN_NAME)

    def manifest(self) -> dict[str, Any]:
        """The study's manifest.

        Raises:
            LogError: it cannot be read.
        """
        return read_manifest(self.root)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest whole.

        Raises:
            LogError: the disk does not take it.
        """
        write_manifest(self.root, manifest)

    def run(self, cell: Cell, repetition: int) -> Path:
        """The folder of a run."""
        return self.root / "cells" / cell.name / str(repetition)

    def fresh_run(self, cell: Cell, repetition: int) -> Path:
        """The folder of a run, empty: what an interrupted or failed one left is removed.

        Raises:
            StudyError: the old one cannot be removed, or the disk does not take the new one.
        """
        folder = self.run(cell, repetition)
        try:
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
        except OSError as error:
            raise StudyError(
                f"{folder} cannot be made anew: {error.strerror}: make room, or make it writable, "
                "then run the study again"
            ) from error
        return folder

    def result(self, cell: Cell, repetition: int) -> Result | None:
        """What a run gave, None where it has not ended.

        Raises:
            StudyError: its result is there and cannot be read.
        """
        path = self.run(cell, repetition) / RESULT_NAME
        try:
            return Result.from_json(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StudyError(f"{path} cannot be read ({error}): remove it, and the run is made again") from error

    def keep(self, cell: Cell, repetition: int, result: Result) -> None:
        """Write what a run gave, whole and last: a run without it is made again.

        Raises:
            StudyError: the disk does not take it.
        """
        path = self.run(cell, repetition) / RESULT_NAME
        draft = path.with_name(f"{RESULT_NAME}.new")
        try:
            draft.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("w", encoding="utf-8") as file:
                json.dump(result.to_json(), file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            raise StudyError(
                f"{path} cannot be written: {error.strerror}: make room, then run the study again"
            ) from error


def _document(plan: Plan) -> dict[str, Any]:
    """A plan in plain types; what is not set is left out."""
    return plan.model_dump(mode="json", exclude_none=True)


def _differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    """What changed between two documents, as `key: before → now`."""
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
