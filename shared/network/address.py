"""Broker addresses and passwords, and the paths of certificates, which `tls` loads."""

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from shared.errors import SkylaneError
from shared.files import read_file
from shared.network.endpoint import BROKER_PASSWORD, BROKER_PASSWORD_FILE, LAST_PORT, Endpoint, EndpointError

_PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker and the credentials for it; neither `str` nor `repr` shows the password."""

    host: str
    port: int
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{'mqtts' if self.tls else 'mqtt'}://{Endpoint(self.host, self.port)}"

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Parses `mqtt://[user@]host[:port]` or `mqtts://…`.

        The password comes from SKYLANE_BROKER_PASSWORD, or from the file that SKYLANE_BROKER_PASSWORD_FILE names.

        Raises:
            SkylaneError: the URL is not valid, or the file holds no password.
        """
        return replace(cls.parse_without_password(url), password=_password())

    @classmethod
    def parse_without_password(cls, url: str) -> "Address":
        """Parses an address as `parse` does, without reading the password.

        Raises:
            SkylaneError: the URL is not valid.
        """
        try:
            whole = url if "//" in url else f"mqtt://{url}"
            parts = urlsplit(whole if whole.isprintable() else "")  # urlsplit drops line breaks.
            default_port = _PORTS[parts.scheme]
            port = default_port if parts.port is None else parts.port
            endpoint = Endpoint.parse(str(Endpoint(parts.hostname or "", port)))
        except (KeyError, ValueError, EndpointError) as error:
            shown = re.sub(r"(.*//)?.*@", r"\1…@", url, flags=re.DOTALL)  # It may contain a password.
            instead = f"write mqtt://host:1883, or mqtts://host:8883 for TLS, with a port from 1 to {LAST_PORT}"
            raise SkylaneError(f"broker address {shown!r} cannot be read: {instead}") from error
        if parts.password is not None or parts.path.strip("/"):
            hint = (
                f"put the password into {BROKER_PASSWORD} or {BROKER_PASSWORD_FILE}"
                if parts.password
                else "write mqtt://host:1883"
            )
            raise SkylaneError(f"broker address of host {endpoint.host!r} cannot be used: {hint}")
        return cls(
            host=endpoint.host,
            port=endpoint.port,
            tls=parts.scheme == "mqtts",
            username=unquote(parts.username) if parts.username else None,
        )


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files for mutual TLS."""

    authority: str | None = None  # None: the authorities that the system trusts.
    certificate: str | None = None
    key: str | None = None


def _password() -> str | None:
    """Returns the password from the environment; None if neither variable is set.

    Raises:
        SkylaneError: both variables are set, or the file cannot be read or is empty.
    """
    path = os.environ.get(BROKER_PASSWORD_FILE)
    if path is None:
        return os.environ.get(BROKER_PASSWORD)
    if BROKER_PASSWORD in os.environ:
        raise SkylaneError(f"{BROKER_PASSWORD} and {BROKER_PASSWORD_FILE} are both set: unset one of them")
    try:
        password = read_file(Path(path)).decode().rstrip("\r\n")  # Editors add a line end.
    except OSError as error:
        raise SkylaneError(f"{BROKER_PASSWORD_FILE}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise SkylaneError(f"{BROKER_PASSWORD_FILE}: {path} is not UTF-8 text") from None
    if not password:
        raise SkylaneError(f"{BROKER_PASSWORD_FILE}: {path} is empty: write the password into it")
    return password
