"""The Mosquitto on this machine: where it is, which it is, how it is configured."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from shared.errors import SkylaneError
from shared.package_data import shipped

MOSQUITTO_MISSING = "no Mosquitto: apt-get install mosquitto"
_ADMIN_FOLDERS = ("/usr/sbin", "/usr/local/sbin")  # Where Debian installs it; not on a user's PATH.
_GREETING_TIMEOUT_S = 5.0


class BrokerError(SkylaneError):
    """A broker cannot be run as asked."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a broker listens, and whether clients must speak TLS there."""

    host: str
    port: int
    tls: bool = False


def find_mosquitto() -> Path | None:
    """The Mosquitto on this machine; None where there is none."""
    found = shutil.which("mosquitto")
    if found:
        return Path(found)
    return next((path for folder in _ADMIN_FOLDERS if (path := Path(folder) / "mosquitto").is_file()), None)


def require_mosquitto() -> Path:
    """The Mosquitto on this machine.

    Raises:
        BrokerError: there is none.
    """
    found = find_mosquitto()
    if found is None:
        raise BrokerError(MOSQUITTO_MISSING)
    return found


def mosquitto_version(program: Path) -> str:
    """What `program` calls itself, such as "2.0.11"."""
    greeting = subprocess.run([program, "-h"], capture_output=True, text=True, check=False, timeout=_GREETING_TIMEOUT_S)
    found = re.search(r"mosquitto version (\S+)", greeting.stdout)
    return found[1] if found else "of unknown version"


def write_config(path: Path, listener: Listener) -> Path:
    """Write the development configuration for `listener` to `path`, and return `path`."""
    path.write_text(configuration("development.conf", listener), encoding="utf-8")
    return path


def configuration(name: str, listener: Listener) -> str:
    """A configuration of the folder `mosquitto/`, with its listener replaced by `listener`.

    Raises:
        BrokerError: the file is not part of this installation.
    """
    file = shipped("mosquitto") / name
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise BrokerError(
            f"cannot read {file} ({error.strerror}): install Skylane's wheel again, or name a configuration with --config"
        ) from error
    line = f"listener {listener.port} {listener.host}"
    text, count = re.subn(r"^listener \d+$", lambda _: line, text, flags=re.MULTILINE)
    assert count == 1, f"{file} must have one listener without an address"
    return text


def first_listener(config: Path) -> Listener:
    """The first listener of a Mosquitto configuration.

    Raises:
        BrokerError: the file cannot be read, or has no listener.
    """
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokerError(f"cannot read {config}: {error}") from error
    found = re.search(r"^\s*(?:listener|port)\s+(\d{1,5})(?:[ \t]+(\S+))?\s*$", text, re.MULTILINE)
    if found is None:
        raise BrokerError(f"{config} has no listener: add a line 'listener 1883 127.0.0.1'")
    tls = re.search(r"^\s*certfile\s", text, re.MULTILINE) is not None
    return Listener(found[2] or "0.0.0.0", int(found[1]), tls)  # noqa: S104  What Mosquitto does without an address.
