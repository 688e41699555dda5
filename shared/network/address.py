"""Where a broker is, and what proves who we are."""

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from shared.errors import SkylaneError
from shared.network.endpoint import Endpoint, EndpointError

_PORTS = {"mqtt": 1883, "mqtts": 8883}
_PASSWORD = "SKYLANE_BROKER_PASSWORD"  # noqa: S105 (where it is, not what it is)
_PASSWORD_FILE = "SKYLANE_BROKER_PASSWORD_FILE"  # noqa: S105 (the same)
BROKER_PASSWORD_VARIABLES = (
    _PASSWORD,
    _PASSWORD_FILE,
)  # Variables that no process needs to see but one that speaks to the broker.


class BrokerAddressError(SkylaneError):
    """A broker's address cannot be read."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker is and how to be let in. The password stays out of every text."""

    host: str
    port: int
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{'mqtts' if self.tls else 'mqtt'}://{Endpoint(self.host, self.port)}"

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Reads `mqtt://[user@]host[:port]` or `mqtts://…`.

        The password comes from SKYLANE_BROKER_PASSWORD, or from the file that SKYLANE_BROKER_PASSWORD_FILE names.

        Raises:
            BrokerAddressError: the text is no such URL, or that file holds no password.
        """
        return replace(cls.parse_without_password(url), password=_password())

    @classmethod
    def parse_without_password(cls, url: str) -> "Address":
        """Reads an address as `parse` does, without its password.

        Raises:
            BrokerAddressError: the text is no such URL.
        """
        try:
            whole = url if "//" in url else f"mqtt://{url}"
            parts = urlsplit(whole if whole.isprintable() else "")  # Which would leave out what breaks a line.
            usual_port = _PORTS[parts.scheme]  # Of another scheme nobody knows whether it asks for TLS.
            port = usual_port if parts.port is None else parts.port
            where = Endpoint.parse(str(Endpoint(parts.hostname or "", port)))
        except (KeyError, ValueError, EndpointError) as error:
            shown = re.sub(r"(.*//)?.*@", r"\1…@", url, flags=re.DOTALL)  # A password may stand there.
            instead = "write mqtt://host:1883, or mqtts://host:8883 for TLS"
            raise BrokerAddressError(f"broker address {shown!r} cannot be read: {instead}") from error
        if parts.password is not None or parts.path.strip("/"):
            hint = (
                f"put the password into {_PASSWORD} or {_PASSWORD_FILE}" if parts.password else "write mqtt://host:1883"
            )
            raise BrokerAddressError(f"broker address of host {where.host!r} cannot be used: {hint}")
        return cls(
            host=where.host,
            port=where.port,
            tls=parts.scheme == "mqtts",
            username=unquote(parts.username) if parts.username else None,
        )


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files for mutual TLS, in PEM."""

    authority: str | None = None  # None: whom this machine trusts.
    certificate: str | None = None
    key: str | None = None


def _password() -> str | None:
    """What proves a user name; None where neither variable is set.

    Raises:
        BrokerAddressError: both are set, or the file cannot be read or holds nothing; never says what it holds.
    """
    path = os.environ.get(_PASSWORD_FILE)
    if path is None:
        return os.environ.get(_PASSWORD)
    if _PASSWORD in os.environ:
        raise BrokerAddressError(f"{_PASSWORD} and {_PASSWORD_FILE} are both set: unset one of them")
    try:
        password = Path(path).read_text(encoding="utf-8").rstrip("\r\n")  # An editor ends the line.
    except OSError as error:
        raise BrokerAddressError(f"{_PASSWORD_FILE}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise BrokerAddressError(f"{_PASSWORD_FILE}: {path} is no text in UTF-8") from None
    if not password:
        raise BrokerAddressError(f"{_PASSWORD_FILE}: {path} is empty: write the password into it")
    return password
