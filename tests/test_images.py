"""What the images and the extras of the wheel hold is enough for the commands that are promised of them; no engine is needed."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ops.broker.certificate_authority import CertificateAuthority, Role
from skylane.cli import COMMANDS
from tests.ci_script import ci_script
from tests.support.environments import ROOT, STOPPED, Environment, distributions_of, install, link
from tests.support.named_commands import (
    PAGES,
    VEHICLE,
    WORKER,
    NamedCommand,
    calls_of,
    dockerfile_of,
    in_compose,
    in_dockerfiles,
    in_manifests,
    in_pages,
    lines_of,
)
from tests.support.synthetic_run import SyntheticRunPlan, write_run

NAMED = list(dict.fromkeys([*in_compose(), *in_dockerfiles(), *in_manifests(), *in_pages()]))
CONTAINERS = (ROOT / "docs" / "guides" / "containers.md").read_text(encoding="utf-8")
PACKAGES = ("analysis", "cloud", "edge", "modelling", "ops", "rosbag_tools", "shared", "skylane")
sbom = ci_script("sbom")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Environment]:
    """The packages that each Dockerfile copies, and the distributions of its lock."""
    found, built = {}, dict[frozenset[Path], Path]()
    for image in sbom.IMAGES:
        folder = tmp_path_factory.mktemp(image.name)
        copied = dockerfile_of(image.name).copy_into(folder / "image")
        shutil.rmtree(copied / "models", ignore_errors=True)  # Not of the packages; `machine` has some.
        files = frozenset(path.relative_to(copied) for path in copied.rglob("*"))
        if files not in built:
            built[files] = install(copied, tmp_path_factory.mktemp("build") / "packages")
            for data in copied.glob("**/skylane_data"):
                shutil.copytree(data, built[files] / "skylane_data")
        names = {block.split("==")[0] for block in sbom.requirements(image)}
        found[image.name] = Environment((built[files], link(folder / "libraries", names)))
    return found


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in place of `/` of a container, with what its volumes bring: models, a bag, certificates, configurations."""
    root = tmp_path_factory.mktemp("machine")
    for name in ("tmp", "cache", "gateway"):
        (root / name).mkdir()
    for name in ("edge.yaml", "cloud.yaml"):
        shutil.copyfile(ROOT / "configs" / name, root / name)
    shutil.copytree(ROOT / "models" / "road-small", root / "models" / "road-small")
    write_run(root / "runs" / "20261128-140000-vehicle", SyntheticRunPlan(frames=20))  # The example of the page.
    make = ["bag", "make", str(root / "runs" / "drive"), "--frames", "2"]
    subprocess.run([sys.executable, "-P", "-m", "skylane", *make], check=True, capture_output=True)
    authority = CertificateAuthority(root / "certs")
    authority.broker(["gateway"], 1)
    for role, name in ((Role.WORKER, "worker"), (Role.VEHICLE, "vehicle")):
        authority.node(role, name, 1)
    (root / "gateway" / "tokens").write_text(f"client {'0' * 48}\n", encoding="utf-8")
    for name in ("server.crt", "server.key"):
        shutil.copyfile(root / "certs" / name, root / "gateway" / name)
    return root


def problems(
    environment: Environment, calls: Sequence[tuple[Sequence[str], Mapping[str, str]]], root: Path
) -> dict[str, str]:
    """Runs commands with variables as in a container whose file system is `root`; returns why some cannot work there."""
    moved = [
        (
            [re.sub(r"0\.0\.0\.0:\d+$", "127.0.0.1:0", re.sub(r"(^|=)/", rf"\1{root}/", word)) for word in arguments],
            variables,
        )
        for arguments, variables in calls
    ]
    ended = environment.run(moved, root)
    return {
        shlex.join(arguments): f"exit code {code}: {output[-2000:]}"
        for (arguments, _), (code, output) in zip(calls, ended, strict=True)
        if code not in (0, STOPPED)
        and re.search("not installed|Traceback|^Usage:", output, re.MULTILINE)
        and "does not exist" not in output
    }


def variables_of(command: NamedCommand, root: Path) -> dict[str, str]:
    """Returns the environment variables of an image and of a service, without those of the tests' own Python."""
    pairs = [word.partition("=") for value in dockerfile_of(command.image).values("ENV") for word in shlex.split(value)]
    set_there = {name: re.sub("^/", f"{root}/", value) for name, _, value in pairs if name.startswith("SKYLANE_")}
    return set_there | dict(command.variables) | broker_of(command.arguments)


def broker_of(arguments: Sequence[str]) -> dict[str, str]:
    """Returns the variable with the address of a broker, which asks for certificates if the command gives some."""
    is_secured = any(word.startswith(("--certs", "--tls-ca")) for word in arguments)
    return {"SKYLANE_BROKER": "mqtts://broker:8883" if is_secured else "mqtt://broker:1883"}


def test_the_commands_are_found_where_they_are_written() -> None:
    """Each of the parsers below would otherwise check nothing."""
    found = {(command.image, " ".join(command.arguments[:2]), command.source) for command in NAMED}
    assert {
        (WORKER, "cloud serve", "compose service cloud"),
        (WORKER, "broker certs", "compose service certs"),
        (VEHICLE, "bag make", "compose service drive"),
        (VEHICLE, "edge --help", "Dockerfile"),
        (WORKER, "health worker", "docs/guides/kubernetes.md"),
        (VEHICLE, "doctor --broker", "docs/guides/metrics.md"),
        (VEHICLE, "trace /runs/20261128-140000-vehicle", "docs/guides/containers.md"),
    } <= found
    with_tokens = [
        each for each in NAMED if each.source == "container worker" and "--tokens=/gateway/tokens" in each.arguments
    ]
    assert [each.image for each in with_tokens] == [WORKER]


@pytest.mark.parametrize("image", sorted({command.image for command in NAMED}))
def test_the_named_commands_find_all_that_they_need_in_their_image(
    images: Mapping[str, Environment], machine: Path, image: str
) -> None:
    """Runs each with its own arguments until it looks up another machine or writes a bag, so that what it imports late counts."""
    assert image in images, f"{image} has no Skylane"
    calls = [(command.arguments, variables_of(command, machine)) for command in NAMED if command.image == image]
    assert problems(images[image], calls, machine) == {}


@pytest.mark.parametrize(
    ("image", "extras"),
    [(VEHICLE, "edge local metrics transports"), (WORKER, "cloud local openvino transports")],
)
def test_an_image_imports_the_plug_ins_of_its_extras(
    images: Mapping[str, Environment], image: str, extras: str
) -> None:
    """Engines, sinks and transports, which are imported only when they are used."""
    paths = {path for extra in extras.split() for path in PARTS[extra]}
    assert images[image].unimportable(paths) == {}


def on_board() -> Iterator[tuple[str, str, bool]]:
    """Yields command, image and whether it is there, from the table of the page about containers."""
    for row in re.finditer(r"^\| `skylane (\w+)` \| ([^|]+) \| ([^|]+) \|", CONTAINERS, re.MULTILINE):
        for image, cell in ((VEHICLE, row[2]), (WORKER, row[3])):
            yield row[1], image, cell.strip().startswith("yes")


def test_the_page_lists_every_command() -> None:
    """A new command is in an image, or left out on purpose."""
    assert sorted({name for name, _, _ in on_board()}) == sorted(COMMANDS)


@pytest.mark.parametrize("image", [VEHICLE, WORKER])
def test_a_command_on_board_parses_all_its_examples_there(images: Mapping[str, Environment], image: str) -> None:
    """Whatever the documentation calls, with its own options."""
    there = {name for name, where, is_there in on_board() if where == image and is_there}
    lines = [call for call in examples() if call[0] in there]
    assert {call[0] for call in lines} == there
    refused = images[image].unparsable(lines)
    complete = Environment((ROOT, *map(Path, filter(None, sys.path)))).unparsable(lines) if refused else {}
    assert {shlex.join(lines[index]): why for index, why in refused.items() if why != complete.get(index)} == {}


def examples() -> list[list[str]]:
    """Returns the arguments of each command line of the documentation."""
    texts = [line for page in PAGES for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()]
    return [call for text in texts for line in lines_of(text) if "'" not in line for call in calls_of(line) if call]


@pytest.mark.parametrize("image", [VEHICLE, WORKER])
def test_a_command_that_is_left_out_says_so(images: Mapping[str, Environment], machine: Path, image: str) -> None:
    """In one line that names what is missing and where the command runs."""
    names = [name for name, where, is_there in on_board() if where == image and not is_there]
    calls = [
        next(call for call in examples() if call[0] == name and (len(call) > 1 or name == "demo")) for name in names
    ]
    line = r"skylane: .*needs \w+, which is not installed: the container images leave it out.*\n"
    for call, (code, output) in zip(calls, images[image].run([(call, {}) for call in calls], machine), strict=True):
        assert code == 1, call
        assert re.fullmatch(line, output), (call, output)


def parts() -> Mapping[str, set[str]]:
    """Returns the import paths of commands and plug-ins by the extras that their tables name for them."""
    found = defaultdict(set)
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            calls = (
                each for each in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(each, ast.Call)
            )
            for call in calls:
                texts = [each.value for each in call.args[:2] if isinstance(each, ast.Constant)]
                if len(texts) == 2 and re.fullmatch(r"[a-z_.]+:\w+", str(texts[0])):
                    found[str(texts[1])].add(str(texts[0]))
    return found


PARTS = parts()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([ROOT / ".ci" / "make-wheel", folder], check=True, capture_output=True)
    (built,) = folder.glob("skylane-*.whl")
    shutil.unpack_archive(built, folder / "packages", "zip")
    return folder / "packages"


def environment_of(wheel: Path, extras: set[str], folder: Path) -> Environment:
    """Returns the wheel installed with some extras."""
    return Environment((wheel, link(folder / "libraries", distributions_of(extras) | {"pip"})))


@pytest.mark.parametrize("extras", sorted(PARTS))
def test_an_extra_brings_what_its_parts_import(wheel: Path, tmp_path: Path, extras: str) -> None:
    """The error of a missing library names this extra as the remedy."""
    assert PARTS[extras]
    environment = environment_of(wheel, {*extras.split(",")}, tmp_path)
    assert environment.unimportable(PARTS[extras]) == {}


def installed_in_pages() -> Iterator[tuple[str, ...]]:
    """Yields extras and the words of the command of each code block that installs extras and goes on with commands."""
    for page in PAGES:
        for block in re.split(r"\n(?![ ]{4}|\n)|```\w*\n", page.read_text(encoding="utf-8").replace("\\\n", " ")):
            extras = ",".join(re.findall(r"^\s*pip install 'skylane\[([\w,]+)\]'", block, re.MULTILINE))
            if extras:
                for line in block.splitlines():
                    yield from ((extras, *call) for text in lines_of(line) for call in calls_of(text))


def calls_by_extras() -> dict[str, list[list[str]]]:
    """Returns the commands by their extras: those of their page, and of a command of their kind."""
    found: dict[str, list[list[str]]] = {}
    for extras, *call in installed_in_pages():
        together = {*extras.split(","), *COMMANDS[call[0]].extras.split(",")}
        found.setdefault(",".join(sorted(together)), []).append(call)
    return found


@pytest.mark.parametrize(("extras", "calls"), calls_by_extras().items(), ids=str)
def test_what_a_page_installs_is_enough_for_its_commands(
    wheel: Path, machine: Path, tmp_path: Path, extras: str, calls: list[list[str]]
) -> None:
    """Runs each of them as in `test_the_named_commands_find_all_that_they_need_in_their_image`."""
    models = {"SKYLANE_MODELS": str(machine / "models")}
    asked = [(call, ({} if call[0] == "model" else models) | broker_of(call)) for call in calls]
    assert problems(environment_of(wheel, {*extras.split(",")}, tmp_path), asked, machine) == {}
