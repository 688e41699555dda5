"""What the listening frontends of a worker need before they start: valid settings and enough open files."""

import resource
import ssl

from cloud.frontend import FRONTENDS
from cloud.gateway.bind import listen
from cloud.gateway.common.auth import Authenticator
from cloud.gateway.settings import GatewaySettings
from shared.errors import SkylaneError
from shared.files import check_file
from shared.network.certificate_expiry import check_not_expired
from shared.registry import load

_OPEN_FILES = 16_384  # The usual limit of 1,024 is less than the connections of one gRPC server.


class GatewayError(SkylaneError):
    """Settings with which the gateway cannot start."""


def check_settings(settings: GatewaySettings) -> None:
    """Checks ports, files and libraries of the servers before models are loaded, which takes longer.

    Raises:
        SkylaneError: a port is in use, a file cannot be used, or a library is missing.
    """
    for name, address in settings.addresses.items():
        listen(name, address).close()
    Authenticator.from_file(settings.tokens)
    if settings.tls_cert is not None and settings.tls_key is not None:
        key = settings.tls_key

        def refuse_password() -> bytes:  # Without this callback OpenSSL prompts at the terminal and waits.
            raise GatewayError(f"the key {key} is protected by a password: give a key without one")

        try:
            check_file(settings.tls_cert)
            check_file(key)
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, key, refuse_password)
        except OSError as error:
            problem = "give a PEM certificate and its key" if isinstance(error, ssl.SSLError) else error.strerror
            raise GatewayError(
                f"{settings.tls_cert} and {settings.tls_key} cannot be used for TLS: {problem}"
            ) from error
        check_not_expired(settings.tls_cert, "renew it, callers do not trust it")
    for name in settings.addresses:
        load("frontend", FRONTENDS, name)


def raise_file_limit() -> None:
    """Allows as many open connections as the servers admit, within the hard limit of the process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
