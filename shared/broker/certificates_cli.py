"""`skylane broker certs`: the certificates of a secured broker and of everyone it lets in."""

from pathlib import Path

import click
from rich.console import Console

from shared.errors import MissingExtraError
from shared.flags import topic_name
from shared.terminal_table import Table

_DAYS = 90


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--broker", "hosts", multiple=True, metavar="HOST", help="A name or address of the broker; again for more."
)
@click.option(
    "--vehicle", "vehicles", multiple=True, type=topic_name("vehicle"), help="A vehicle by its name; again for more."
)
@click.option(
    "--worker", "workers", multiple=True, type=topic_name("worker"), help="A worker by its name; again for more."
)
@click.option(
    "--operator", "operators", multiple=True, type=topic_name("operator"), help="An operator; again for more."
)
@click.option("--days", type=click.IntRange(1, 825), default=_DAYS, show_default=True, help="How long they are valid.")
@click.option("--again", is_flag=True, help="Make those named here anew, with new keys, where they are there already.")
@click.option("--revoke", "revoked", multiple=True, metavar="NAME", help="Have the broker refuse it; again for more.")
@click.option("--renew-list", is_flag=True, help="Only sign the list of what is revoked anew, for --days.")
def certs(
    *,
    folder: Path,
    hosts: tuple[str, ...],
    vehicles: tuple[str, ...],
    workers: tuple[str, ...],
    operators: tuple[str, ...],
    revoked: tuple[str, ...],
    days: int,
    again: bool,
    renew_list: bool,
) -> None:
    """Make an authority in FOLDER, or use the one there, and sign certificates with it.

    Those that are there and valid are kept. Each node gets ca.crt and its own two files, and nothing else. The list of
    what is revoked, crl.pem, is signed anew each time: give it to the broker before it expires.
    """
    try:
        from shared.broker.certificate_authority import CertificateAuthority, Role  # noqa: PLC0415 (a broker without certificates needs it not)
    except ModuleNotFoundError as error:
        raise MissingExtraError("'skylane broker certs'", error.name or "cryptography", "broker") from error
    if not (hosts or vehicles or workers or operators or revoked or renew_list):
        raise click.UsageError(
            "no certificate was asked for: name --broker, --vehicle, --worker or --operator, or say --renew-list"
        )
    authority = CertificateAuthority(folder)
    for name in revoked:
        count = authority.revoke(name)
        click.echo(f"{name}: certificates revoked: {count}; restart the broker, which then refuses them")
    nodes = {Role.VEHICLE: vehicles, Role.WORKER: workers, Role.OPERATOR: operators}
    issued = [authority.broker(hosts, days, again=again)] if hosts else []
    issued += [authority.node(role, name, days, again=again) for role, names in nodes.items() for name in names]
    list_expires = authority.renew_list(days)
    console = Console(soft_wrap=True)
    if issued:
        table = Table("who", "certificate and key", "expires", "", title=f"In {folder}")
        for each in issued:
            files = f"{each.file.name}, {each.file.with_suffix('.key').name}"
            state = "new" if each.is_new else "kept"
            table.add_row(f"{each.role} {each.name}", files, f"{each.expires:%Y-%m-%d}", state)
        console.print(table)
    console.print(
        f"{authority.revoked_file}, the list of what is revoked, expires {list_expires:%Y-%m-%d}: renew it with "
        "--renew-list, and restart the broker, which lets nobody in by an expired one.",
        f"{authority.key_file} signs for whoever has it: keep the folder {authority.key_file.parent} off the broker, the "
        "vehicles and the workers.",
        f"The broker:   skylane broker --secured {folder} --host 0.0.0.0 --port 8883",
        f"Each node:    its own two files and ca.crt in a folder, then --broker mqtts://HOST:8883 --certs {folder}",
        sep="\n",
        markup=False,
        highlight=False,
    )
