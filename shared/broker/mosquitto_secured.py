"""The secured broker without containers: `secured.conf` and `acl` of the folder `mosquitto/`, with this machine's paths."""

import os
import pwd
import shutil
from pathlib import Path

from shared.broker.mosquitto import BrokerError, Listener, configuration
from shared.network.certificate_expiry import check_crl_not_expired, check_not_expired
from shared.package_data import shipped

# The paths of secured.conf, which are those of the official container image.
_IMAGE_CERTS = "/mosquitto/certs"
_IMAGE_ACL = "/mosquitto/config/acl"
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
    check_not_expired(
        certificates / "ca.crt", "make another authority in a new folder, and give its ca.crt to every node"
    )
    check_not_expired(certificates / "server.crt", f"renew it with '{renew} --broker HOST --again'")
    check_crl_not_expired(certificates / "crl.pem", f"renew it with '{renew} --renew-list'")
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
