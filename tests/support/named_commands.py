"""The command lines of Skylane that are named for an image: by compose, Dockerfiles, manifests and documentation."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.compose_file import SERVICES
from tests.support.environments import ROOT, Dockerfile

VEHICLE, WORKER = "skylane-edge", "skylane-cloud"
PAGES = [ROOT / "README.md", ROOT / "mosquitto" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BUILT = {service["image"]: service["build"] for service in SERVICES.values() if "build" in service}
_PLACES = {
    r"\bon (?:an?|the|each|every) vehicle(?:'s machine)?(?!['’\w])": (VEHICLE,),
    r"\bon (?:an?|the|each|every) worker(?:'s machine)?(?!['’\w])": (WORKER,),
    r"\bon its machine\b": (VEHICLE, WORKER),
}
_PLACEHOLDERS = {"URL": "mqtt://broker:1883"}
_WITH_VALUE = {"-e", "--env", "-v", "--volume", "-u", "--user", "-w", "--workdir", "--name", "-n", "-c", "--entrypoint"}
_SEPARATORS = set("\n;&|()<>")


@dataclass(frozen=True, slots=True)
class NamedCommand:
    """A command line, and where it is written."""

    image: str
    arguments: tuple[str, ...]  # After `skylane`.
    source: str = field(compare=False)
    variables: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.source}: skylane {shlex.join(self.arguments)}"


def in_compose() -> Iterator[NamedCommand]:
    """Yields the commands of the services: their start, health checks and hooks."""
    for name, service in SERVICES.items():
        variables = {key: str(value) for key, value in service.get("environment", {}).items()}
        image = service["image"]
        dockerfile = dockerfile_of(image)
        entrypoint = _words(service["entrypoint"]) if "entrypoint" in service else _start(dockerfile, "ENTRYPOINT")
        started = (
            service.get("command") if "entrypoint" in service else service.get("command", _start(dockerfile, "CMD"))
        )
        lines = [[*entrypoint, *_words(started)], *_other_commands(service)]
        yield from _calls(image, lines, f"compose service {name}", variables)


def in_dockerfiles() -> Iterator[NamedCommand]:
    """Yields the start and the health check of each image."""
    for image in BUILT:
        dockerfile = dockerfile_of(image)
        checks = [["sh", "-c", value.partition("CMD")[2]] for value in dockerfile.values("HEALTHCHECK")]
        lines = [[*_start(dockerfile, "ENTRYPOINT"), *_start(dockerfile, "CMD")], *checks]
        yield from _calls(image, lines, "Dockerfile", {})


def in_manifests() -> Iterator[NamedCommand]:
    """Yields the commands of all containers in kubernetes/, of pods and jobs of any kind."""
    files = [[*yaml.safe_load_all(path.read_text())] for path in sorted((ROOT / "kubernetes").rglob("*.yaml"))]
    added = [[each["value"] for each in _mappings(file) if str(each.get("path")).endswith("/args/-")] for file in files]
    for container in _mappings(files):
        if "image" not in container or "name" not in container:
            continue
        image = str(container["image"]).partition(":")[0]
        variables = {each["name"]: str(each.get("value", "2")) for each in container.get("env", ())}
        words = [_with_variables(str(word), variables) for word in container.get("args", ())]
        entrypoint = (
            _words(container["command"]) if "command" in container else _start(dockerfile_of(image), "ENTRYPOINT")
        )
        lines = [[*entrypoint, *words], *_other_commands(container)]
        lines += [[*entrypoint, *words, *more] for more in added if more and "command" not in container]
        yield from _calls(image, lines, f"container {container['name']}", variables)


def in_pages() -> Iterator[NamedCommand]:
    """Yields what the pages call in a container, or on a vehicle, a worker or the machine of either."""
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            source = str(page.relative_to(ROOT))
            if found := re.search(r"\b(docker compose|podman-compose|kubectl|docker|podman)\b.*", line):
                yield from _in_a_container(found[0].partition("`")[0], source)
            for image in {image for place, images in _PLACES.items() if re.search(place, line) for image in images}:
                yield from _calls(image, [["sh", "-c", text] for text in lines_of(line)], source, None)


def lines_of(text: str) -> list[str]:
    """Returns the command lines of Skylane in a line of a page: in code spans, or the line itself."""
    spans = re.findall(r"`(skylane [^`]+)`", text)
    code = re.match(r"(?: {4}|\$ )?(skylane [a-z].*)", text)
    return [*spans, *([code[1]] if code else [])]


def calls_of(text: str, variables: Mapping[str, str] | None = None) -> list[list[str]]:
    """Returns the arguments of each call of `skylane` in a text for a shell."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars="\n;&|()<>")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, "#"
    calls: list[list[str]] = []
    words: list[str] = []
    for token in [*lexer, ";"]:
        if not set(token) <= _SEPARATORS:
            if word := _with_variables(token, variables):
                words.append(word)
            continue
        while words and re.fullmatch(r"\w+=.*|then|do|else|if|!|exec|time", words[0]):
            words.pop(0)
        if words and Path(words[0]).name == "skylane":
            calls.append([_PLACEHOLDERS.get(word, word) for word in words[1:]])
        words = []
    return calls


def _in_a_container(text: str, source: str) -> Iterator[NamedCommand]:
    """Yields the command of `compose run` and `exec`, `kubectl exec`, and `run` of an image."""
    try:
        tool, *words = shlex.split(text, comments=True)
    except ValueError:  # Prose with an apostrophe.
        return
    verb = next((word for word in words if word in ("run", "exec")), None)
    if verb is None:
        return
    flags, called, rest = _after(verb, words, tool)
    image = SERVICES.get(called, {}).get("image", called.partition(":")[0])
    image = {"worker": WORKER, "vehicle": VEHICLE}.get(called, image) if tool == "kubectl" else image
    if image in BUILT and rest:
        entrypoint = _words(SERVICES.get(called, {}).get("entrypoint", "skylane")) if verb == "run" else []
        started = [flags["--entrypoint"]] if "--entrypoint" in flags else entrypoint
        yield from _calls(image, [[*started, *rest]], source, None)


def _after(verb: str, words: Sequence[str], tool: str) -> tuple[dict[str, str], str, list[str]]:
    """Returns the flags behind a verb, the service, pod or image that they are followed by, and the command in it."""
    rest, flags = list(words[words.index(verb) + 1 :]), dict[str, str]()
    called = ""
    while rest and (rest[0].startswith("-") or not called):
        word = rest.pop(0)
        if not word.startswith("-"):
            called = word
        elif word in _WITH_VALUE and rest:
            flags[word] = rest.pop(0)
        if called and tool != "kubectl":
            break
    return flags, flags.get("-c", called.rpartition("/")[2] if tool == "kubectl" else called), rest


def _calls(
    image: str, lines: Iterable[Sequence[str]], source: str, variables: Mapping[str, str] | None
) -> Iterator[NamedCommand]:
    for line in lines:
        if not line:
            continue
        program = Path(line[0]).name
        if program in ("sh", "bash", "ash"):
            script = next((index for index, word in enumerate(line) if re.fullmatch(r"-\w*c", word)), None)
            found = calls_of(line[script + 1], variables) if script is not None else []
        elif program.startswith("python") and list(line[1:3]) == ["-m", "skylane"]:
            found = [list(line[3:])]
        else:
            found = [list(line[1:])] if program == "skylane" else []
        yield from (
            NamedCommand(image, tuple(call), source, tuple(sorted((variables or {}).items()))) for call in found
        )


def dockerfile_of(image: str) -> Dockerfile:
    """Returns what an image is built from; an image of others has no instructions here."""
    return Dockerfile.read(ROOT / BUILT[image]["dockerfile"]) if image in BUILT else Dockerfile([("FROM", image)])


def _start(dockerfile: Dockerfile, instruction: str) -> list[str]:
    return [word for value in dockerfile.values(instruction) for word in json.loads(value)]


def _other_commands(container: Any) -> Iterator[list[str]]:
    """Yields what runs in a container beside its start: health checks, probes and hooks, wherever they stand."""
    for value in container.values():
        for each in _mappings(value):
            for words in (_words(each[name]) for name in ("command", "test") if each.get(name)):
                yield ["sh", "-c", *words[1:]] if words[0] == "CMD-SHELL" else words[words[0] == "CMD" :]


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _mappings(each)


def _words(value: Any) -> list[str]:
    """Returns a command of compose, which may be one text, as words."""
    return shlex.split(value) if isinstance(value, str) else [str(word) for word in value or ()]


def _with_variables(text: str, variables: Mapping[str, str] | None) -> str:
    """Replaces `$NAME`, `${NAME}` and `$(NAME)`; without values, as in a page, by some name."""
    pattern = r"\$(?:\{(\w+)\}|\((\w+)\)|(\w+))"
    return re.sub(
        pattern, lambda found: "some" if variables is None else variables.get(found[found.lastindex or 0], ""), text
    )
