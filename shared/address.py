"""Where a broker is, and what proves who we are."""

import os
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from shared.errors import SkylaneError

_PORTS = {"mqtt": 1883, "mqtts": 8883}


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
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Read `mqtt://[user@]host[:port]` or `mqtts://…`; the password comes from SKYLANE_BROKER_PASSWORD.

        Raises:
            BrokerAddressError: it is no such URL.
        """
        try:
            parts = urlsplit(url if "//" in url else f"mqtt://{url}")
            port = parts.port or _PORTS[parts.scheme]
        except (KeyError, ValueError) as error:
            shown = re.sub(r"//.*@", "//…@", url)  # A password may stand there.
            raise BrokerAddressError(f"broker address {shown!r} cannot be read: write mqtt://host:1883") from error
        if not parts.hostname or parts.password is not None or parts.path.strip("/"):
            hint = "put the password into SKYLANE_BROKER_PASSWORD" if parts.password else "write mqtt://host:1883"
            raise BrokerAddressError(f"broker address of host {parts.hostname!r} cannot be used: {hint}")
        return cls(
            host=parts.hostname,
            port=port,
            tls=parts.scheme == "mqtts",
            username=unquote(parts.username) if parts.username else None,
            password=os.environ.get("SKYLANE_BROKER_PASSWORD"),
        )


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files for mutual TLS, in PEM."""

    authority: str
    certificate: str | None = None
    key: str | None = None
