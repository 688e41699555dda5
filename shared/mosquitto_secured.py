"""The secured broker without containers: the settings and roles of the folder `mosquitto/`, with this machine's paths."""

import os
import pwd
import shutil
from pathlib import Path

from shared.expiry import refuse_expired, refuse_expired_list
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
_USER = "mosquitto"  # As the packages of Debian and of others call it.
_FILES = ("ca.crt", "crl.pem", "server.crt", "server.key")


def write_secured_config(folder: Path, listener: Listener, certificates: Path) -> Path:
    """Write the secured configuration for `listener` and its ACL into `folder`; the path of the configuration.

    Started by root, Mosquitto runs as whoever owns `server.key`, or as the user `mosquitto` where that is root too, by
    copies of the files that this user can read.

    Raises:
        BrokerError: one of the files that `skylane broker certs` makes is not there, or there is no such user.
        ExpiredError: one of them has expired.
    """
    for name in _FILES:
        if not (certificates / name).is_file():
            raise BrokerError(
                f"{certificates} has no {name}: make it with 'skylane broker certs {certificates} --broker HOST'"
            )
    renew = f"skylane broker certs {certificates}"
    refuse_expired(certificates / "ca.crt", "make another authority in a new folder, and give its ca.crt to every node")
    refuse_expired(certificates / "server.crt", f"renew it with '{renew} --broker HOST --again'")
    refuse_expired_list(certificates / "crl.pem", f"renew it with '{renew} --renew-list'")
    is_root = os.geteuid() == 0
    user = _user(certificates / "server.key") if is_root else None
    paths = {"certs": folder if is_root else certificates.resolve(), "config": folder}
    settings = [line.format(**paths) for line in SECURED_SETTINGS]
    if user is not None:
        settings.append(f"user {user}")
    path = folder / "mosquitto.conf"
    path.write_text("\n".join([f"listener {listener.port} {listener.host}", *settings, ""]), encoding="utf-8")
    (folder / "acl").write_text("\n".join([*ROLES, ""]), encoding="utf-8")
    if user is not None:
        for name in _FILES:
            shutil.copy(certificates / name, folder / name)  # With its mode: the key is its owner's alone.
        for owned in (folder, folder / "acl", *(folder / name for name in _FILES)):
            shutil.chown(owned, user)
    return path


def _user(key_file: Path) -> str:
    """The name of the user as whom root shall run Mosquitto, which takes no number."""
    uid = key_file.stat().st_uid
    try:
        return pwd.getpwuid(uid).pw_name if uid != 0 else pwd.getpwnam(_USER).pw_name
    except KeyError:
        if uid == 0:
            raise BrokerError(
                f"root does not run a broker that others reach, and this machine has no user {_USER!r}: make it by "
                f"'useradd --system {_USER}', or run this command as another user"
            ) from None
        raise BrokerError(
            f"{key_file} belongs to user {uid}, who has no name on this machine, and Mosquitto runs as its owner: "
            f"give it to one that has, such as by 'chown mosquitto {key_file}'"
        ) from None
