"""Finds Mosquitto on this machine and writes its configuration: for development, or the secured one with this machine's paths."""

import os
import pwd
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.errors import SkylaneError, reason_of
from shared.files import read_file, write_file
from shared.network.tls import check_not_expired
from shared.package_data import shipped

MOSQUITTO_MISSING = "Mosquitto is not installed: apt-get install mosquitto"
_ADMIN_FOLDERS = ("/usr/sbin", "/usr/local/sbin")  # Debian installs it there, off the PATH of users.
_HELP_TIMEOUT_S = 5.0
# Paths in secured.conf, those of the official container image.
_IMAGE_CERTS = "/mosquitto/certs"
_IMAGE_ACL = "/mosquitto/config/acl"
_USER = "mosquitto"  # Created by the packages of Debian and other distributions.
_FILES = ("ca.crt", "crl.pem", "server.crt", "server.key")


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
    program = shutil.which("mosquitto")
    if program:
        return Path(program)
    return next((path for folder in _ADMIN_FOLDERS if (path := Path(folder) / "mosquitto").is_file()), None)


def mosquitto_version(program: Path) -> str:
    """Returns the version of `program`, such as "2.0.11"."""
    help_text = subprocess.run([program, "-h"], capture_output=True, text=True, check=False, timeout=_HELP_TIMEOUT_S)
    version = re.search(r"mosquitto version (\S+)", help_text.stdout)
    return version[1] if version else "(unknown version)"


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
    listener = re.search(r"^\s*(?:listener|port)\s+(\d{1,5})(?:[ \t]+(\S+))?\s*$", text, re.MULTILINE)
    if listener is None:
        raise BrokerError(f"{config} has no listener: add a line 'listener 1883 127.0.0.1'")
    tls = re.search(r"^\s*certfile\s", text, re.MULTILINE) is not None
    return MosquittoListener(listener[2] or "0.0.0.0", int(listener[1]), tls)  # noqa: S104  Mosquitto's default.


def write_secured_config(folder: Path, listener: MosquittoListener, certificates: Path) -> Path:
    """Writes the secured configuration for `listener` and its ACL into `folder` and returns the configuration's path.

    If root starts it, Mosquitto runs as the owner of `server.key`, or as the user `mosquitto` if root owns that too. It
    then uses copies of the files that this user can read.

    Raises:
        BrokerError: a file that `skylane broker certs` makes is missing, or the user does not exist.
        SkylaneError: a certificate or the revocation list has expired.
    """
    _check(certificates)
    is_root = os.geteuid() == 0
    user = _user(certificates / "server.key") if is_root else None
    text = configuration("secured.conf", listener)
    text = text.replace(_IMAGE_CERTS, str(folder if is_root else certificates.resolve()))
    text = text.replace(_IMAGE_ACL, str(folder / "acl"))
    if user is not None:
        text += f"user {user}\n"
    path = folder / "mosquitto.conf"
    write_file(path, text)
    write_file(folder / "acl", (shipped("mosquitto") / "acl").read_bytes())
    if user is not None:
        _copy(certificates, folder, user)
        for owned in (folder, folder / "acl"):
            shutil.chown(owned, user)
    return path


def renew_secured_files(folder: Path, certificates: Path) -> None:
    """Prepares the reload of renewed certificates and of the revocation list, where `write_secured_config` wrote.

    Raises:
        SkylaneError: the broker could not use one of them. It keeps those that it has.
    """
    _check(certificates)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name in ("ca.crt", "crl.pem"):
        with _explained(f"{certificates / name} is damaged"):
            context.load_verify_locations(certificates / name)
    with _explained(f"{certificates}: server.crt and server.key are not a certificate and its key"):
        context.load_cert_chain(certificates / "server.crt", certificates / "server.key", lambda: "")
    if os.geteuid() == 0:
        _copy(certificates, folder, _user(certificates / "server.key"))


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # SSLError is one too.
        raise BrokerError(f"{problem} ({reason_of(error)}): make it again with 'skylane broker certs'") from error


def _check(certificates: Path) -> None:
    """Raises a SkylaneError if a file is missing, damaged or expired."""
    for name in _FILES:
        if not (certificates / name).is_file():
            raise BrokerError(
                f"{certificates} has no {name}: make it with 'skylane broker certs {certificates} --broker HOST'"
            )
    renew = f"skylane broker certs {certificates}"
    check_not_expired(
        certificates / "ca.crt", "create a new authority in a new folder, and give its ca.crt to every node"
    )
    check_not_expired(certificates / "server.crt", f"renew it with '{renew} --broker HOST --again'")
    check_not_expired(certificates / "crl.pem", f"renew it with '{renew} --renew-list'", is_revocation_list=True)


def _copy(certificates: Path, folder: Path, user: str) -> None:
    """Copies the files for a user; each copy replaces the earlier file atomically."""
    for name in _FILES:
        new = folder / f"{name}.new"
        shutil.copy(certificates / name, new)  # Keeps the mode: only the owner may read the key.
        shutil.chown(new, user)
        new.replace(folder / name)


def _user(key_file: Path) -> str:
    """Returns the name of the user as which root runs Mosquitto."""
    uid = key_file.stat().st_uid
    try:
        return pwd.getpwuid(uid).pw_name if uid != 0 else pwd.getpwnam(_USER).pw_name
    except KeyError:
        if uid == 0:
            raise BrokerError(
                f"root does not run a broker that others can reach, and there is no user {_USER!r}: create it with "
                f"'useradd --system {_USER}', or run this command as another user"
            ) from None
        raise BrokerError(
            f"{key_file} belongs to user {uid}, which has no name on this machine, and Mosquitto runs as its owner: "
            f"change the owner, for example with 'chown mosquitto {key_file}'"
        ) from None
