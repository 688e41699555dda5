"""The secured broker without containers: the settings and roles of the folder `mosquitto/`, with this machine's paths."""

import os
import pwd
import shutil
from pathlib import Path

from shared.mosquitto import DEVELOPMENT_SETTINGS, BrokerError, Listener

# Those of mosquitto/secured.conf, which says why each stands; a test holds the two together.
SECURED_SETTINGS = (
    "cafile {certs}/ca.crt",
    "crlfile {certs}/crl.pem",
    "certfile {certs}/server.crt",
    "keyfile {certs}/server.key",
    "tls_version tlsv1.2",
    "require_certificate true",
    "use_identity_as_username true",
    "acl_file {config}/acl",
    "allow_anonymous false",
    *(line for line in DEVELOPMENT_SETTINGS if not line.startswith("allow_anonymous ")),
    "max_connections 1024",
)
# Those of mosquitto/acl, held together by the same test.
ROLES = (
    "pattern write skylane/v1/frames/+/%u/+",
    "pattern write skylane/v1/retries/+/+/%u/+",
    "pattern write skylane/v1/probes/+/%u",
    "pattern readwrite skylane/v1/status/vehicle/%u",
    "pattern read skylane/v1/masks/%u/+",
    "pattern read skylane/v1/echoes/%u/+",
    "pattern read skylane/v1/status/worker/+",
    "user worker",
    "topic read skylane/v1/frames/+/+/+",
    "topic read skylane/v1/retries/+/+/+/+",
    "topic read skylane/v1/probes/+/+",
    "topic read skylane/v1/control/+/+",
    "topic write skylane/v1/masks/+/+",
    "topic write skylane/v1/echoes/+/+",
    "topic write skylane/v1/replies/+/+",
    "topic readwrite skylane/v1/status/worker/+",
    "user operator",
    "topic write skylane/v1/control/+/+",
    "topic read skylane/v1/replies/+/+",
    "topic read skylane/v1/status/+/+",
    "topic read $SYS/#",
)
_FILES = ("ca.crt", "crl.pem", "server.crt", "server.key")


def write_secured_config(folder: Path, listener: Listener, certificates: Path) -> Path:
    """Write the secured configuration for `listener` and its ACL into `folder`; the path of the configuration.

    Mosquitto runs as whoever owns `server.key`, which started by root need not be root.

    Raises:
        BrokerError: one of the files that `skylane broker certs` makes is not there, or its owner has no name here.
    """
    for name in _FILES:
        if not (certificates / name).is_file():
            raise BrokerError(
                f"{certificates} has no {name}: make it with 'skylane broker certs {certificates} --broker HOST'"
            )
    user = _owner(certificates / "server.key")
    paths = {"certs": certificates.resolve(), "config": folder}
    settings = [line.format(**paths) for line in SECURED_SETTINGS]
    path = folder / "mosquitto.conf"
    path.write_text(
        "\n".join([f"listener {listener.port} {listener.host}", *settings, f"user {user}", ""]), encoding="utf-8"
    )
    (folder / "acl").write_text("\n".join([*ROLES, ""]), encoding="utf-8")
    if os.geteuid() == 0:
        for owned in (folder, folder / "acl"):
            shutil.chown(owned, user)
    return path


def _owner(key_file: Path) -> str:
    """The name of the user whom Mosquitto shall run as; it takes no number."""
    uid = key_file.stat().st_uid if os.geteuid() == 0 else os.geteuid()  # Only root can be somebody else.
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        if os.geteuid() != 0:  # Mosquitto does not look then: a container may give it a user without a name.
            return str(uid)
        raise BrokerError(
            f"{key_file} belongs to user {uid}, who has no name on this machine, and Mosquitto runs as its owner: "
            f"give it to one that has, such as by 'chown mosquitto {key_file}'"
        ) from None
