#!/usr/bin/env python3
"""Write down what each image is made of: every library that its lock puts there, with the hashes it is checked against.

CycloneDX as JSON in build/sbom/, validated against its schema before it is written; the same lock gives the same bytes.
What the base image brings (Debian, Python itself) is its publisher's to list.
"""

import configparser
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "sbom"
VERSION = "1.6"  # Of CycloneDX: ECMA-424.
# What the Dockerfiles' base image is to a lock, which holds the libraries of every platform.
PLATFORM = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.11.0",
    "python_version": "3.11",
    "sys_platform": "linux",
}


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is published."""

    name: str
    lock: Path
    without: frozenset[str] = frozenset()  # Libraries of the lock that the Dockerfile takes out again.


IMAGES = (
    Image("skylane-edge", ROOT / "edge" / "requirements.lock", frozenset({"setuptools"})),
    Image("skylane-cloud", ROOT / "cloud" / "requirements.lock"),
    Image("skylane-cloud-gpu", ROOT / "cloud" / "requirements-gpu.lock"),
)


def requirements(image: Image) -> list[str]:
    """What of its lock the image holds: one text a library, with its version and its hashes."""
    blocks = re.split(r"^(?=[A-Za-z0-9])", image.lock.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [block for block in blocks if _is_held(Requirement(block.split(" \\\n")[0].strip()), image)]


def _is_held(library: Requirement, image: Image) -> bool:
    return library.name not in image.without and (library.marker is None or library.marker.evaluate(PLATFORM))


def project(name: str) -> str:
    """A pyproject.toml for the image of this name, with the version and the licence that setup.cfg gives Skylane."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    about = setup["metadata"]
    return (
        f'[project]\nname = "{name}"\nversion = "{about["version"]}"\n'
        f'description = "{about["description"]}"\nlicense = "{about["license"]}"\n'
    )


def write(image: Image, file: Path) -> int:
    """Write the image's bill of materials; how many libraries it lists.

    Raises:
        subprocess.CalledProcessError: the lock cannot be read, or the outcome is not valid.
    """
    held = requirements(image)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "pyproject.toml"
        root.write_text(project(image.name), encoding="utf-8")
        command = [str(Path(sys.executable).with_name("cyclonedx-py")), "requirements", "--pyproject", str(root)]
        command += ["--sv", VERSION, "--output-format", "JSON", "--output-reproducible", "--validate"]
        command += ["--output-file", str(file), "-"]
        # It warns that a lock does not say which library wants which.
        quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
        subprocess.run(command, env=quiet, input="".join(held), text=True, check=True)
    return len(held)


def main() -> None:
    """Write one file an image."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for image in IMAGES:
        file = FOLDER / f"{image.name}.cdx.json"
        count = write(image, file)
        sys.stdout.write(f"{file.relative_to(ROOT)}: {count} libraries, valid CycloneDX {VERSION}\n")


if __name__ == "__main__":
    main()
