"""What docs/reference/stability.md promises, line by line, against the frozen list in tests/data/stability.txt.

`python -m tests.test_stability`, in the folder of the repository, writes the list again.
"""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

import skylane
from cloud.config import CloudConfig
from edge.config import EdgeConfig
from edge.ledger import RunCounts
from edge.run_record import ended, started
from edge.sinks.sink import FrameResult, PresentedTick
from shared.resources.sampler import COLUMNS as RESOURCE_COLUMNS
from shared.runlog.latency_log import COLUMNS as LATENCY_COLUMNS
from shared.runlog.presented_log import COLUMNS as PRESENTED_COLUMNS
from skylane.bags import BagImage
from tests.edge.samples import CARD
from tests.support.run_damage import EARLIER_RUNS
from tests.test_commands import COMMANDS

ROOT = Path(__file__).parents[1]
FROZEN = ROOT / "tests" / "data" / "stability.txt"
_WRITE_AGAIN = "write the list again with `python -m tests.test_stability`"


def promises() -> list[str]:
    """Returns everything that is promised, a line for each."""
    return list(dict.fromkeys([*_files(), *_wire(), *_python(), *_command_line(), *_configuration()]))


def _files() -> Iterator[str]:
    columns = {
        "latency.csv": LATENCY_COLUMNS,
        "presented.csv": PRESENTED_COLUMNS,
        "resources.csv": RESOURCE_COLUMNS,
    }
    for file, names in columns.items():
        yield from (f"{file}: column {number} is {name}" for number, name in enumerate(names, start=1))
    manifest = ended(started(EdgeConfig(), "session", {}, CARD), RunCounts(0, 0, {}, {}, None), 0)
    yield from (f"manifest.json: {key}" for key in manifest)
    yield from (f"manifest.json: model.{key}" for key in manifest["model"])


def _wire() -> Iterator[str]:
    """Yields the topics and keys of docs/reference/asyncapi.yaml, which tests/shared/test_asyncapi.py compares with the code."""
    document = yaml.safe_load((ROOT / "docs" / "reference" / "asyncapi.yaml").read_text("utf-8"))
    for operation in document["operations"].values():
        address = document["channels"][operation["channel"]["$ref"].rpartition("/")[2]]["address"]
        binding = operation["bindings"]["mqtt"]
        yield f"topic {address}: QoS {binding['qos']}{', retained' if binding['retain'] else ''}"
    for name, schema in document["components"]["schemas"].items():
        yield from _keys(name, schema)


def _keys(path: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"message {path}: may be {value}" for value in schema.get("enum", ()))
    for key, inner in schema.get("properties", {}).items():
        kind = inner.get("$ref", "").rpartition("/")[2] or inner.get("type", "")
        need = "required" if key in schema.get("required", ()) else "optional"
        yield f"message {path}.{key}: {need} {kind if isinstance(kind, str) else ' or '.join(kind)}".rstrip()
        yield from _keys(f"{path}.{key}", inner)
    if isinstance(schema.get("items"), dict):
        yield from _keys(f"{path}[]", schema["items"])


def _python() -> Iterator[str]:
    for name in skylane.__all__:
        public = getattr(skylane, name)
        is_record = name in ("EdgeConfig", "SkylaneError")  # The keys of the first one are those of its file.
        yield f"skylane.{name}" if is_record else f"skylane.{name}{_signature(public)}"
        if inspect.isclass(public) and not is_record:
            yield from (f"skylane.{name}.{each}" for each in _members(public))
    yield from (f"skylane.open_run(): {name}" for name in _members(skylane.open_run(EARLIER_RUNS[0])))
    yield from (f"skylane.open_bag(): {name}" for name in BagImage.__annotations__)
    for record in (FrameResult, PresentedTick):
        yield from (f"skylane.play(): {record.__name__}.{each.name}" for each in dataclasses.fields(record))


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def _members(owner: object) -> list[str]:
    members = {name: inspect.getattr_static(owner, name) for name in dir(owner) if not name.startswith("_")}
    return [f"{name}{_signature(each)}" if inspect.isroutine(each) else name for name, each in members.items()]


def _command_line() -> Iterator[str]:
    for path, command in COMMANDS.items():
        name = " ".join(("skylane", *path))
        yield name
        for parameter in command.params:
            if not isinstance(parameter, click.Option):
                yield f"{name}: argument {parameter.human_readable_name}"
            elif not parameter.hidden:
                required = ", required" if parameter.required else ""
                yield f"{name}: {' '.join((*parameter.opts, *parameter.secondary_opts))}{required}"


def _configuration() -> Iterator[str]:
    for file, section in (("edge.yaml", EdgeConfig), ("cloud.yaml", CloudConfig)):
        yield from (f"{file}: {name}, by default {field.default}" for name, field in section.model_fields.items())


def test_nothing_that_is_promised_is_removed() -> None:
    """Scripts, logs and deployments of users go on with the next version."""
    now = set(promises())
    removed = [line for line in FROZEN.read_text("utf-8").splitlines() if line not in now]
    assert not removed, "\n".join(
        [
            f"{len(removed)} promises of docs/reference/stability.md are broken:",
            *removed,
            "Keep them. If the page allows the change, tell users under 'What you must change' in CHANGELOG.md, and "
            + _WRITE_AGAIN,
        ]
    )


def test_what_is_new_is_in_the_list() -> None:
    """Otherwise the next change could remove it unnoticed."""
    frozen = set(FROZEN.read_text("utf-8").splitlines())
    added = [line for line in promises() if line not in frozen]
    assert not added, "\n".join(
        ["new, and not in tests/data/stability.txt:", *added, "To promise them, " + _WRITE_AGAIN]
    )


if __name__ == "__main__":
    FROZEN.write_text("\n".join(promises()) + "\n", "utf-8")
