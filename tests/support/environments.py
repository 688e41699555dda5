"""Environments that hold chosen distributions and packages only, as an image or a user's installation does.

They are folders of links to the distributions that the tests run with. All locks name the same versions.
"""

import configparser
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from shared.runtime.memory import TUNABLE

ROOT = Path(__file__).parents[2]
STOPPED = 77  # The exit code of a command that was about to reach another machine.
_LIMIT_S = 300  # Only a command that hangs takes so long.

# With -I and -S, the path holds the standard library alone. Each call is a fork of a process that has imported the large libraries.
_RUN = f"""
import contextlib, importlib, json, os, signal, sys, tempfile, time
(folders,), calls = [json.loads(word) for word in sys.argv[1:]], json.load(sys.stdin)
sys.path += folders
own = ("", "0.0.0.0", "127.0.0.1", "localhost")
for library in ("numpy", "cv2", "msgspec", "paho.mqtt.client", "pydantic", "structlog", "tensorflow"):
    with contextlib.suppress(ImportError):
        importlib.import_module(library)

def stop_at_the_first_effect(event, values):
    reaches = event == "socket.getaddrinfo" and isinstance(values[0], str) and values[0] not in own
    writes = event == "sqlite3.connect" or (event == "open" and values[2] & os.O_CREAT and ".mcap" in str(values[0]))
    if reaches or writes:
        os.write(2, f"{{event}} {{values[0]}}".encode())
        os._exit({STOPPED})

def call(arguments, variables, output):
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(variables)
    sys.addaudithook(stop_at_the_first_effect)
    from skylane.cli import main
    main(arguments)

results = []
for arguments, variables in calls:
    with tempfile.TemporaryFile() as output:
        if (pid := os.fork()) == 0:
            call(arguments, variables, output.fileno())
            sys.exit()
        end = time.monotonic() + {_LIMIT_S}
        while (status := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if status[0] == 0:
            status = os.waitpid(pid, 0)
        output.seek(0)
        results.append([os.waitstatus_to_exitcode(status[1]), output.read().decode(errors="replace")])
print(json.dumps(results))
"""
_PARSE = """
import contextlib, json, os, sys
folders, lines = json.loads(sys.argv[1]), json.load(sys.stdin)
sys.path += folders
import click
from skylane.cli import skylane
click.Command.invoke = lambda self, ctx: None  # Groups still find and import their subcommands.
refused = {}
for index, line in enumerate(lines):
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # The help.
            skylane.main(args=line, prog_name="skylane", standalone_mode=False)
    except SystemExit as ended:
        assert not ended.code, line
    except click.ClickException as error:
        refused[index] = error.format_message()
    except Exception as error:
        refused[index] = f"{type(error).__name__}: {error}"
print(json.dumps(refused))
"""
_IMPORT = """
import importlib, json, sys
folders, paths = json.loads(sys.argv[1]), json.load(sys.stdin)
sys.path += folders
refused = {}
for path in paths:
    module, _, attribute = path.partition(":")
    try:
        getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        refused[path] = str(error)
print(json.dumps(refused))
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """Folders that Python searches beside its standard library."""

    folders: Sequence[Path]

    def run(self, calls: Sequence[tuple[Sequence[str], Mapping[str, str]]], cwd: Path) -> list[tuple[int, str]]:
        """Runs command lines of Skylane with variables, each until it looks up another machine.

        Returns the exit code and output of each.
        """
        variables = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(cwd),
            "TMPDIR": str(cwd),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "GLIBC_TUNABLES": f"{TUNABLE}=0",  # Otherwise a command would execute this whole program again.
        }
        return [(code, output) for code, output in self._ask(_RUN, calls, cwd=cwd, env=variables)]

    def unparsable(self, lines: Sequence[Sequence[str]]) -> dict[int, str]:
        """Parses command lines without running them; returns the errors by index."""
        return {int(index): error for index, error in self._ask(_PARSE, lines).items()}

    def unimportable(self, paths: Collection[str]) -> dict[str, str]:
        """Imports "module:attribute" paths; returns the errors by path."""
        refused: dict[str, str] = self._ask(_IMPORT, sorted(paths))
        return refused

    def _ask(self, program: str, question: object, **options: Any) -> Any:
        command = [sys.executable, "-I", "-S", "-c", program, json.dumps([str(folder) for folder in self.folders])]
        done = subprocess.run(
            command, input=json.dumps(question), capture_output=True, text=True, check=False, **options
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def link(folder: Path, names: Iterable[str]) -> Path:
    """Fills a folder with the files of some distributions; those that are not installed here are left out."""
    wanted = set(map(canonicalize_name, names))
    for path, (owners, file) in _files().items():
        above = Path(*path[:-1])
        shared_above = above.parts and not _files()[above.parts][0] <= wanted
        if owners & wanted and (len(path) == 1 or shared_above):
            at = folder.joinpath(*path)
            if owners <= wanted or file.is_file():
                at.parent.mkdir(parents=True, exist_ok=True)
                at.symlink_to(file)
    return folder


@cache
def _files() -> dict[tuple[str, ...], tuple[set[str], Path]]:
    """Returns the distributions that own each file and folder of the environment, and its place."""
    found: dict[tuple[str, ...], tuple[set[str], Path]] = {}
    for each in distributions():
        name = canonicalize_name(each.metadata["Name"])
        for file in each.files or ():
            if ".." in file.parts or "__pycache__" in file.parts:
                continue
            place = Path(str(file.locate()))
            for length in range(1, len(file.parts) + 1):
                above = place.parents[len(file.parts) - length - 1] if length < len(file.parts) else place
                found.setdefault(file.parts[:length], (set(), above))[0].add(name)
    return found


def distributions_of(extras: Iterable[str]) -> set[str]:
    """Returns the names of the distributions that pip installs for Skylane with some extras."""
    found: set[str] = set()
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    lists = {"": setup["options"]["install_requires"], **setup["options.extras_require"]}
    waiting = [Requirement(f"skylane[{','.join(extras)}]")]
    done = set()
    while waiting:
        each = waiting.pop()
        name = canonicalize_name(each.name)
        if (name, frozenset(each.extras)) in done:
            continue
        done.add((name, frozenset(each.extras)))
        if name == "skylane":
            texts = "\n".join(lists[extra] for extra in ("", *each.extras)).splitlines()
            waiting += [Requirement(text) for text in texts if text and not text.startswith("#")]
            continue
        found.add(name)
        try:
            needed = [Requirement(text) for text in distribution(name).requires or ()]
        except PackageNotFoundError:
            continue
        waiting += [
            other
            for other in needed
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in ("", *each.extras))
        ]
    return found


def install(source: Path, folder: Path) -> Path:
    """Builds Skylane's wheel from a folder and unpacks it into another one."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder.parent)]
    subprocess.run([*pip, "wheel", *options, str(source)], check=True, capture_output=True)
    (wheel,) = folder.parent.glob("skylane-*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    wheel.unlink()
    return folder


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """The instructions of a Dockerfile, without their comments, and with continued lines as one."""

    instructions: Sequence[tuple[str, str]]

    @classmethod
    def read(cls, path: Path) -> "Dockerfile":
        """Reads a Dockerfile."""
        text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        lines = text.replace("\\\n", " ").splitlines()
        return cls([(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines) if word])

    def values(self, name: str) -> list[str]:
        """Returns the values of an instruction of the last stage; ENTRYPOINT, CMD and HEALTHCHECK have one at most."""
        start = max(index for index, (word, _) in enumerate(self.instructions) if word == "FROM")
        return [value for word, value in self.instructions[start:] if word == name]

    def copies(self) -> list[tuple[list[str], str]]:
        """Returns the sources and the target of every COPY of files of the repository."""
        words = [value.split() for word, value in self.instructions if word == "COPY" and "--from" not in value]
        return [(sources, target) for *sources, target in words]

    def copy_into(self, folder: Path) -> Path:
        """Copies what the image is built from, without what .dockerignore keeps out of the build."""
        ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        kept = [ROOT / line[1:] for line in ignore if line.startswith("!")]
        for sources, target in self.copies():
            for source in (ROOT / source for source in sources):
                for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
                    if path.is_file() and "__pycache__" not in path.parts and {path, *path.parents} & set(kept):
                        inside = path.relative_to(source) if source.is_dir() else path.name
                        to = folder / target.lstrip("/") / inside
                        to.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(path, to)
        return folder
