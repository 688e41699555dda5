"""The structure of the code: import directions, cycles, unique names, and what `--help` may load."""

import ast
import functools
import graphlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylane import cli

ROOT = Path(__file__).parents[1]
# The packages that each package may import, in addition to itself.
ALLOWED_IMPORTS = {
    "shared": set(),
    "rosbag_tools": {"shared"},
    "edge": {"shared"},
    "cloud": {"shared"},
    "modelling": {"cloud", "edge", "rosbag_tools", "shared"},
    "analysis": {"edge", "modelling", "rosbag_tools", "shared"},
    "ops": {"analysis", "cloud", "edge", "modelling", "rosbag_tools", "shared"},
    "bench": {"analysis", "cloud", "edge", "modelling", "ops", "rosbag_tools", "shared", "skylane"},
    "training": {"analysis", "bench", "cloud", "edge", "modelling", "ops", "rosbag_tools", "shared", "skylane"},
    "skylane": {"analysis", "cloud", "edge", "modelling", "rosbag_tools", "shared"},
}
# Libraries that take long to import, or are not installed on every vehicle.
HEAVY = (
    "cv2",
    "numpy",
    "tensorflow",
    "keras",
    "paho",
    "rich",
    "pydantic",
    "rosbags",
    "av",
    "msgpack",
    "msgspec",
    "yaml",
)
MODULES = sorted(path for package in ALLOWED_IMPORTS for path in (ROOT / package).rglob("*.py"))
FOLDERS = sorted({path.parent for path in MODULES})
NAMES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in MODULES if path.name != "__init__.py"}


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Returns the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def package_docstring(folder: Path) -> str:
    """Returns the docstring of a package."""
    return ast.get_docstring(parsed(folder / "__init__.py")) or ""


def imports(path: Path) -> Iterator[str]:
    """Returns the full name of every module that a file imports, at any level of indentation."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively: house style is absolute imports"
            assert node.module is not None
            yield node.module


@functools.cache
def imported_modules(path: Path) -> set[str]:
    """Returns the modules of Skylane that a file imports at run time, at any level of indentation."""
    tree = parsed(path)
    checked = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in checked:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & NAMES.keys()


def test_packages_import_only_permitted_packages() -> None:
    """For example, edge and cloud share only the protocol, so neither may import the other."""
    crossed = []
    for path in MODULES:
        package = path.relative_to(ROOT).parts[0]
        forbidden = ALLOWED_IMPORTS.keys() - ALLOWED_IMPORTS[package] - {package}
        crossed += [(str(path), name) for name in imports(path) if name.partition(".")[0] in forbidden]
    assert crossed == []


def test_every_package_has_a_docstring() -> None:
    """The docstring of `__init__.py` is the first text that a reader of a package sees."""
    assert [str(folder) for folder in FOLDERS if len(package_docstring(folder)) < 30] == []


def test_there_are_no_import_cycles() -> None:
    """The modules of a cycle can only be understood together, even if the import is inside a function."""
    graph = {name: imported_modules(path) for name, path in NAMES.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_folders_do_not_import_each_other_in_circles() -> None:
    """Between the folders of a package, the imports go one way. A folder and those inside it may use each other."""
    graph: dict[Path, set[Path]] = {}
    for name, path in NAMES.items():
        for other in (NAMES[imported].parent for imported in imported_modules(path)):
            related = path.is_relative_to(other) or other.is_relative_to(path.parent)
            if not related and other.relative_to(ROOT).parts[0] == name.partition(".")[0]:
                graph.setdefault(path.parent, set()).add(other)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(str(folder.relative_to(ROOT)) for folder in error.args[1]))


def test_no_two_public_classes_have_the_same_name() -> None:
    """A reader who searches for a class must find only one."""
    places: dict[str, list[str]] = {}
    for name, path in NAMES.items():
        if name.startswith("bench.peers.servers."):  # Each file runs in the environment of another server.
            continue
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_tests_reach_no_private_names() -> None:
    """A test of private names fails when the code is simplified, although the behaviour stays."""
    private = {
        name
        for path in MODULES
        for node in ast.walk(parsed(path))
        for name in (getattr(node, "name", None) or getattr(node, "attr", None) or getattr(node, "id", None),)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) or isinstance(getattr(node, "ctx", None), ast.Store)
        if isinstance(name, str) and re.match("_[a-zA-Z]", name)
    } - {"_replace", "_packet_handle"}  # Of named tuples, and a method of paho that `shared.mqtt` overrides.
    reached = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in ALLOWED_IMPORTS:
                reached += [f"{path}: {alias.name}" for alias in node.names if alias.name in private]
            if not isinstance(node, ast.Attribute) or node.attr not in private:
                continue
            if ast.unparse(node.value) not in {"self", "cls"}:
                reached.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    assert reached == []


def test_importing_a_package_runs_no_code() -> None:
    """`__init__.py` contains only a docstring, because every import of the package would run other code in it."""
    for folder in FOLDERS:
        if folder != ROOT / "skylane":
            body = parsed(folder / "__init__.py").body
            assert len(body) == 1, folder
            assert ast.get_docstring(parsed(folder / "__init__.py")), folder


def test_a_vehicle_loads_no_tensorflow() -> None:
    """TensorFlow is not installed on a vehicle."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in MODULES
        if path.is_relative_to(ROOT / "edge") and path.name != "__init__.py"
    ]
    assert names
    script = f"import sys, {', '.join(names)}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert not {*ended.stdout.split()} & {"tensorflow", "keras", "cloud", "modelling"}


_HELP = """
import contextlib, io, json, sys
from skylane import cli
results = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            code = cli.main(arguments)
        except SystemExit as ended:
            code = ended.code
    results.append([arguments, code or 0, printed.getvalue(), [*sys.modules]])
print(json.dumps(results))
"""


def test_every_command_prints_its_help_and_loads_no_framework_for_it() -> None:
    """`cli.COMMANDS` contains import paths, and a wrong one would fail only when its command is called.

    Importing TensorFlow, pandas and Plotly takes seconds, which a user waits for every time. `skylane --help` prints at once.
    """
    called = [
        ["--help"],
        ["study", "list"],
        ["study", "run", "--help"],
        *([command, "--help"] for command in cli.COMMANDS),
    ]
    command = [sys.executable, "-c", _HELP, json.dumps(called)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    results = json.loads(ended.stdout)
    assert "Commands:" in results[0][2]
    assert not {*results[0][3]} & set(HEAVY)
    for arguments, code, printed, modules in results:
        assert code == 0, arguments
        assert arguments[-1] != "--help" or re.match(rf"Usage: \S+ {' '.join([*arguments[:-1], ''])}", printed), printed
        assert not {*modules} & {"tensorflow", "keras", "torch", "openvino", "pandas", "plotly", "scipy"}, arguments


def test_plug_in_tables_name_existing_classes() -> None:
    """The import path of a plug-in is a string, so no other tool notices that its module was moved."""
    tables = {
        (str(path.relative_to(ROOT)), node.args[0].value)
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id.endswith("Entry")
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert tables
    for where, target in sorted(tables):
        module, _, attribute = str(target).partition(":")
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        assert path.is_file(), (where, target)
        defined = {node.name for node in parsed(path).body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        assert attribute in defined, (where, target)


# Calls that write a file by its name, and the modules in which no stranger can have put a link of that name.
WRITES = re.compile(
    r"\.(write_text|write_bytes|touch|imwrite)\(|\b(copyfile|copytree)\(|shutil\.(copy|move)\(|saved_model\.save\("
    r"|(np\.savez?(_compressed)?|\.to_(csv|parquet|pickle|excel))\((?!file\b|packed\b)"
    r"|(?<!archive\.)open\(.*'(w|a|r\+|w\+|wb|ab|r\+b|rb\+|w\+b|a\+b)'|os\.open\((?!.*O_EXCL).*O_CREAT"
)
WRITERS = {
    "shared/files.py": "what all others use",
    "shared/logs.py": "standard error",
    "edge/view/view_process.py": "standard output",
    "cloud/isolation/engine_process.py": "/proc",
    "cloud/engines/openvino/graph.py": "a temporary folder",
    "edge/view/rerun_viewer.py": "a temporary folder",
    "modelling/conversion/conversion_graph.py": "a temporary folder",
    "ops/broker/mosquitto.py": "a temporary folder",
    "rosbag_tools/reading/data_file.py": "a temporary folder",
    "rosbag_tools/reading/mcap_file.py": "a bag that was just written",
    "edge/sinks/video.py": "a file that was just created",
    "modelling/export.py": "a model's own folder, made from nothing",
    "modelling/inspection/model_files.py": "a folder that was just created",
    "ops/study/variants.py": "a folder that was just created",
}


def test_files_are_written_without_following_links() -> None:
    """The folder of a run from somebody else can hold a link, by which a command would overwrite another file."""
    product = [path for path in MODULES if not path.is_relative_to(ROOT / "bench")]
    found = {path: WRITES.search(ast.unparse(parsed(path))) for path in product}
    assert {str(path.relative_to(ROOT)) for path, call in found.items() if call} == WRITERS.keys()


def test_stamps_and_durations_come_from_one_clock() -> None:
    """Waits within a process may use `time.monotonic`; the benches compare with clocks of others."""
    reading = re.compile(r"\btime\.(time|perf_counter)(_ns)?\(")
    found = {str(path.relative_to(ROOT)) for path in MODULES if reading.search(path.read_text(encoding="utf-8"))}
    assert {name for name in found if not name.startswith(("bench/", "training/"))} == {"shared/clock.py"}


def test_pictures_are_decoded_where_their_size_is_checked() -> None:
    """OpenCV raises its own error for a header that declares too many pixels, and reads a FIFO without end."""
    decoding = re.compile(r"\bcv2\.(imread|imdecode)|\bPIL\b")
    found = {str(path.relative_to(ROOT)) for path in MODULES if decoding.search(path.read_text(encoding="utf-8"))}
    guarded = {"shared/imaging/image_files.py", "shared/imaging/built_in_codecs.py"}
    assert {name for name in found if not name.startswith("bench/")} == guarded


GUIDES = (
    "CONTRIBUTING.md",
    "docs/explanation/architecture.md",
    *(f"docs/contributing/{name}" for name in ("index.md",)),
)


@pytest.mark.parametrize("guide", sorted(each for each in GUIDES if (ROOT / each).exists()))
def test_guides_for_contributors_name_files_that_exist(guide: str) -> None:
    """A pointer to a file that was moved costs a newcomer more time than none."""
    known = {path.name for path in MODULES} | {path.name for path in (ROOT / "tests").rglob("*.py")}
    named = re.findall(r"`([\w./-]+\.py)`", (ROOT / guide).read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if not (ROOT / name).exists() and ("/" in name or name not in known)] == []


def test_the_docstring_of_a_package_names_modules_that_exist() -> None:
    """It says which module to read first."""
    for folder in FOLDERS:
        for sentence in re.findall(r"(?:Start with|Read) [^.]*(?:\.\w[^.]*)*", package_docstring(folder)):
            for name in re.findall(r"`([\w.]+)`", sentence):
                path = Path(*name.removesuffix(".py").split("."))
                places = [start / path for start in (folder, ROOT)]
                assert any(place.is_dir() or place.with_suffix(".py").is_file() for place in places), (folder, name)


def test_docstrings_of_modules_name_files_that_exist() -> None:
    """A module that was merged or moved leaves pointers behind."""
    known = {path.name for path in MODULES} | {path.name for path in (ROOT / "tests").rglob("*.py")} | {"setup.py"}
    dangling = []
    for path in MODULES:
        docstring = ast.get_docstring(parsed(path)) or ""
        named = re.findall(r"`([\w./-]+\.py)`", docstring)
        dangling += [(str(path), name) for name in named if name.rpartition("/")[2] not in known]
    assert dangling == []
