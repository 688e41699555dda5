"""THIRD-PARTY.md agrees with the lock files and the installed wheels, so that no native library is added unnoticed."""

import configparser
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.ci_script import ci_script

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "THIRD-PARTY.md").read_text(encoding="utf-8")
IMAGE_NAMES = {"skylane-edge": "edge", "skylane-cloud": "cloud", "skylane-cloud-gpu": "gpu"}
SECTION = r"(?ms)^### ([^\n]*)\n(.*?)(?=^#|\Z)"
sbom = ci_script("sbom")


@dataclass(frozen=True, slots=True)
class DistributionRow:
    """A row of one of the page's tables of distributions."""

    version: str
    text: str

    @property
    def cells(self) -> list[str]:
        """The cells of the row."""
        return [cell.strip() for cell in self.text.strip("|").split("|")]


def rows() -> dict[str, DistributionRow]:
    """Returns the rows with a version in their second cell, by distribution."""
    found = re.finditer(r"^\| ([a-z0-9-]+)(?: \([^)]*\))? \| (\d[\w.]*) \|.*$", PAGE, re.MULTILINE)
    return {match[1]: DistributionRow(match[2], match[0]) for match in found}


def locked() -> dict[str, tuple[str, set[str]]]:
    """Returns the version and the images of every distribution in an image."""
    found: dict[str, tuple[str, set[str]]] = {}
    for image in sbom.IMAGES:
        for block in sbom.requirements(image):
            library = Requirement(block.split(" \\\n")[0].strip())
            version = str(library.specifier).removeprefix("==")
            found.setdefault(library.name, (version, set()))[1].add(IMAGE_NAMES[image.name])
    return found


def installed(name: str) -> Distribution | None:
    """Returns an installed distribution; None for those only in the GPU image, which are too large to install here."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def native_files(found: Distribution) -> list[str]:
    """Returns the paths of a distribution's shared libraries and extension modules."""
    return [str(path) for path in found.files or () if re.search(r"\.(so|dylib)(\.|$)", path.name)]


def text_about(name: str) -> str:
    """Returns the row of a distribution and the sections that the row links to."""
    row = rows()[name]
    sections = {f"#{title.lower().replace(' ', '-')}": text for title, text in re.findall(SECTION, PAGE)}
    return row.text + "".join(sections[link] for link in re.findall(r"\((#[^)]*)\)", row.text))


def bundled_libraries() -> Iterator[tuple[str, str]]:
    """Yields distributions of the images with the names of libraries in their `.libs` folders."""
    for name in locked():
        for path in native_files(found) if (found := installed(name)) else ():
            if re.match(r"[^/]+\.libs/|.*/\.dylibs/", path):
                yield name, re.split(r"-r\d|-[0-9a-f]{8}|\.so", Path(path).name)[0].rstrip("_-")


def test_every_distribution_with_native_code_is_listed_with_its_version_and_images() -> None:
    """An update requires a review of the libraries in the new wheel."""
    expected, listed = {}, {name: (row.version, row.text) for name, row in rows().items()}
    for name, (version, images) in locked().items():
        found = installed(name)
        if found is None or native_files(found):
            expected[name] = (version, images)
    assert listed.keys() == expected.keys()
    assert {name: version for name, (version, _) in listed.items()} == {name: expected[name][0] for name in expected}
    for name, (_, images) in expected.items():
        if not name.startswith("nvidia-"):
            assert set(rows()[name].cells[2].split(", ")) == images, name


def test_only_nvidia_distributions_are_not_installed_here() -> None:
    """They were reviewed by hand; the search for native libraries needs installed ones."""
    missing = {name for name in locked() if installed(name) is None}
    assert all(name.startswith("nvidia-") for name in missing)
    assert missing <= rows().keys()


@pytest.mark.parametrize("name", [name for name in rows() if installed(name)])
def test_a_listed_licence_is_that_of_the_wheel(name: str) -> None:
    """The listed licence files exist too."""
    row, found = rows()[name], distribution(name)
    if "License-Expression" in found.metadata:
        assert found.metadata["License-Expression"] in row.text
    paths = re.findall(r"`([^`]+)`", row.cells[5])
    assert paths
    assert all(Path(str(found.locate_file(path))).is_file() for path in paths)


def test_every_bundled_library_is_listed() -> None:
    """For example, x264 is in the vehicle image because the wheel of `av` bundles it."""
    bundled = sorted(set(bundled_libraries()))
    assert {("av", "libx264"), ("av", "libx265")} <= set(bundled)
    missing = [(name, library) for name, library in bundled if f"`{library}" not in text_about(name)]
    assert not missing


@pytest.mark.parametrize("dockerfile", ["edge/Dockerfile", "cloud/Dockerfile"])
def test_the_page_is_part_of_the_images(dockerfile: str) -> None:
    """The build copies it, and the wheel has it in its `dist-info` folder."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    assert "THIRD-PARTY.md" in setup["metadata"]["license_files"].split()
    assert "!THIRD-PARTY.md" in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = re.search(r"^COPY setup\.cfg (.*)$", (ROOT / dockerfile).read_text(encoding="utf-8"), re.MULTILINE)
    assert copied is not None
    assert "THIRD-PARTY.md" in copied[1].split()
