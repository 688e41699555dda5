"""Writes the configuration of the secured broker: `mosquitto/secured.conf` and `acl`, with this machine's paths."""

import os
import pwd
import shutil
from pathlib import Path

from ops.broker.mosquitto import BrokerError, MosquittoListener, configuration
from shared.network.tls import check_not_expired
from shared.package_data import shipped

# Paths in secured.conf, those of the official container image.
_IMAGE_CERTS = "/mosquitto/certs"
_IMAGE_ACL = "/mosquitto/config/acl"
_USER = "mosquitto"  # Created by the packages of Debian and other distributions.
_FILES = ("ca.crt", "crl.pem", "server.crt", "server.key")


def write_secured_config(folder: Path, listener: MosquittoListener, certificates: Path) -> Path:
    """Writes the secured configuration for `listener` and its ACL into `folder` and returns the configuration's path.

    If root starts it, Mosquitto runs as the owner of `server.key`, or as the user `mosquitto` if root owns that too. It
    then uses copies of the files that this user can read.

    Raises:
        BrokerError: a file that `skylane broker certs` makes is missing, or the user does not exist.
        SkylaneError: a certificate or the revocation list has expired.
    """
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
    is_root = os.geteuid() == 0
    user = _user(certificates / "server.key") if is_root else None
    text = configuration("secured.conf", listener)
    text = text.replace(_IMAGE_CERTS, str(folder if is_root else certificates.resolve()))
    text = text.replace(_IMAGE_ACL, str(folder / "acl"))
    if user is not None:
        text += f"user {user}\n"
    path = folder / "mosquitto.conf"
    path.write_text(text, encoding="utf-8")
    shutil.copyfile(shipped("mosquitto") / "acl", folder / "acl")
    if user is not None:
        for name in _FILES:
            shutil.copy(certificates / name, folder / name)  # Keeps the mode: only the owner may read the key.
        for owned in (folder, folder / "acl", *(folder / name for name in _FILES)):
            shutil.chown(owned, user)
    return path


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
