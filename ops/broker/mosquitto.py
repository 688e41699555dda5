"""Finds Mosquitto on this machine and writes its configuration."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from shared.errors import SkylaneError, reason_of
from shared.files import read_file, write_file
from shared.package_data import shipped

MOSQUITTO_MISSING = "Mosquitto is not installed: apt-get install mosquitto"
_ADMIN_FOLDERS = ("/usr/sbin", "/usr/local/sbin")  # Debian installs it there, off the PATH of users.
_HELP_TIMEOUT_S = 5.0


class BrokerError(SkylaneError):
    """A broker cannot be run as requested."""


@dataclass(frozen=True, slots=True)
class MosquittoListener:
    """An address on which a broker listens, with or without TLS."""

    host: str
    port: int
    tls: bool = False


def find_mosquitto() -> Path | None:
    """Returns the path of Mosquitto; None if it is not installed."""
    found = shutil.which("mosquitto")
    if found:
        return Path(found)
    return next((path for folder in _ADMIN_FOLDERS if (path := Path(folder) / "mosquitto").is_file()), None)


def require_mosquitto() -> Path:
    """Returns the path of Mosquitto.

    Raises:
        BrokerError: it is not installed.
    """
    found = find_mosquitto()
    if found is None:
        raise BrokerError(MOSQUITTO_MISSING)
    return found


def mosquitto_version(program: Path) -> str:
    """Returns the version of `program`, such as "2.0.11"."""
    help_text = subprocess.run([program, "-h"], capture_output=True, text=True, check=False, timeout=_HELP_TIMEOUT_S)
    found = re.search(r"mosquitto version (\S+)", help_text.stdout)
    return found[1] if found else "(unknown version)"


def write_config(path: Path, listener: MosquittoListener) -> Path:
    """Writes the development configuration for `listener` to `path` and returns `path`."""
    write_file(path, configuration("development.conf", listener))
    return path


def configuration(name: str, listener: MosquittoListener) -> str:
    """Returns a configuration of the folder `mosquitto/` with its listener replaced by `listener`.

    Raises:
        BrokerError: this installation lacks the file.
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


def first_listener(config: Path) -> MosquittoListener:
    """Returns the first listener of a Mosquitto configuration.

    Raises:
        BrokerError: the file cannot be read or has no listener.
    """
    try:
        text = read_file(config).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BrokerError(f"cannot read {config}: {reason_of(error)}") from error
    found = re.search(r"^\s*(?:listener|port)\s+(\d{1,5})(?:[ \t]+(\S+))?\s*$", text, re.MULTILINE)
    if found is None:
        raise BrokerError(f"{config} has no listener: add a line 'listener 1883 127.0.0.1'")
    tls = re.search(r"^\s*certfile\s", text, re.MULTILINE) is not None
    return MosquittoListener(found[2] or "0.0.0.0", int(found[1]), tls)  # noqa: S104  Mosquitto's default.
