"""`skylane report`: show or repair the latency log of a run."""

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from shared.latency_log import outcomes, read_rows
from shared.latency_table import outcome_table, stage_table, summarise
from shared.repair import repair
from shared.run_manifest import read_manifest


@click.command()
@click.argument("run", type=click.Path(file_okay=False, path_type=Path))
@click.option("--repair", "repairs", is_flag=True, help="Close as `aborted` what a killed run left open.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def report(run: Path, *, repairs: bool, as_json: bool) -> None:
    """Show where the time of a run went and what became of its frames. RUN is its folder."""
    console = Console()
    if repairs:
        aborted = repair(run)
        click.echo(f"{aborted} frames were open and are closed as aborted", err=as_json)
    rows = list(read_rows(run))
    summaries = summarise(rows)
    if as_json:
        stages = [asdict(summary) for summary in summaries]
        click.echo(json.dumps({"outcomes": outcomes(rows), "stages": stages, "manifest": read_manifest(run)}, indent=2))
        return
    if summaries:
        console.print(stage_table(summaries))
    console.print(outcome_table(rows))
