"""The lock files: tests, demo, images and `.ci` tools use the same version of every common library."""

import configparser
import re
from importlib.metadata import distribution
from itertools import combinations
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
COMPLETE = "requirements-dev.lock"  # Constrains the other lock files.
# Excludes bench/peers: other serving systems need other versions of protobuf or numpy.
LOCKS = sorted(
    str(path.relative_to(ROOT))
    for folder in (ROOT, ROOT / "edge", ROOT / "cloud", ROOT / ".ci")
    for path in folder.glob("*.lock")
)
PYTHONS = ("3.11", "3.12", "3.13")


def pinned(lock: str, python: str = "3.11") -> dict[str, str]:
    """Returns the versions that pip installs from a lock file on Linux with the given Python."""
    platform = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
    lines = re.findall(r"^[a-z0-9].*?==.*", (ROOT / lock).read_text(encoding="utf-8"), re.MULTILINE)
    requirements = [Requirement(line.rstrip(" \\")) for line in lines]
    return {
        each.name: str(each.specifier).removeprefix("==")
        for each in requirements
        if each.marker is None or each.marker.evaluate(platform)
    }


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("one", "other"), [*combinations(LOCKS, 2)], ids=lambda value: str(value).replace("/", "-"))
def test_two_lock_files_agree_on_common_libraries(one: str, other: str, python: str) -> None:
    """Images and the demo would otherwise run untested versions."""
    first, second = pinned(one, python), pinned(other, python)
    assert {
        name: (first[name], second[name]) for name in first.keys() & second.keys() if first[name] != second[name]
    } == {}


def test_the_expected_lock_files_exist() -> None:
    """A lock file that was moved would not be compared."""
    assert {COMPLETE, "requirements.lock", "edge/requirements.lock", "cloud/requirements.lock"} < set(LOCKS)
    assert {"cloud/requirements-gpu.lock", ".ci/audit.lock", ".ci/torch.lock"} < set(LOCKS)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_development_lock_contains_the_demo_lock(python: str) -> None:
    """`make test` after `make demo` only adds libraries and replaces none."""
    demo, complete = pinned("requirements.lock", python), pinned(COMPLETE, python)
    assert len(demo) > 50
    assert demo.items() <= complete.items()


def test_the_demo_installs_no_test_tools() -> None:
    """The test tools need a gigabyte of disk space."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = [line.strip() for line in settings["options.extras_require"]["dev"].splitlines()]
    tools = {Requirement(line).name.lower() for line in lines if line and not line.startswith("#")}
    assert {"atheris", "playwright", "pytest", "tritonclient"} < tools
    assert not tools & pinned("requirements.lock").keys()
    assert not {"openvino", "onnxruntime", "nncf", "kaleido"} & pinned("requirements.lock").keys()


def test_the_demo_installs_what_the_shipped_local_models_need() -> None:
    """`--local-model road-tiny` and `--cascade` work right after `make demo`, as the README shows them."""
    assert "ai-edge-litert" in pinned("requirements.lock")


def test_the_vehicle_lock_has_no_tensorflow() -> None:
    """TensorFlow takes 1.9 GB, and a vehicle never loads it."""
    assert not {"tensorflow", "keras", "openvino"} & pinned("edge/requirements.lock").keys()


def test_the_vehicle_image_needs_less_than_700_mb() -> None:
    """A vehicle's disk is small. Python's image takes 130 MB, compiled bytecode 40 MB, Skylane with its models 15 MB."""
    names = pinned("edge/requirements.lock").keys() - {"setuptools"}  # The build removes it.
    assert {"ai-edge-litert", "onnxruntime"} < names
    paths = {Path(str(file.locate())) for name in names for file in distribution(name).files or ()}
    kept = [path for path in paths if path.is_file() and path.suffix != ".pyc" and not _is_removed(path)]
    assert 400e6 < sum(path.stat().st_size for path in kept) < 515e6


def _is_removed(path: Path) -> bool:
    """Returns whether edge/Dockerfile removes a library's file."""
    removed = (
        "tests",
        "ai_edge_litert/tools",
        "ai_edge_litert/vendors",
        "ai_edge_litert/libLiteRtWebGpuAccelerator.so",
    )
    return any(f"/{name}/" in f"{path}/" for name in removed)
