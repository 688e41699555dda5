"""`skylane bench`: benchmarks that report ratios measured in one run."""

from importlib import import_module

import click

from bench.engines.engine_comparison import engines
from bench.engines.tensorflow_comparison import tensorflow
from bench.faults.cli import faults
from bench.harness.child import BenchError
from bench.harness.options import renamed_command
from bench.link.cli import link
from bench.performance.clock_accuracy import clocks
from bench.performance.gateway import gateway
from bench.performance.overhead import overhead
from bench.performance.report_cost import report
from bench.performance.saturation import saturation
from bench.performance.stamping import stamping
from bench.performance.tls import tls
from bench.performance.transports import transports
from bench.performance.vehicle import vehicle
from bench.resilience.failover import failover
from bench.resilience.model_swap import swap
from bench.resilience.soak import soak
from shared.runtime.processes import interrupt_on_termination


@click.group()
@click.pass_context
def bench(context: click.Context) -> None:
    """Measure the cost of offloading, as ratios to bare inference."""
    context.with_resource(interrupt_on_termination())  # Ends the child processes of a benchmark with it.


def _checkout_command(name: str, summary: str) -> click.Command:
    """Returns the command of a package that the wheel does not contain, or one that raises BenchError."""
    try:
        command: click.Command = getattr(import_module(f"bench.{name}.cli"), name)
    except ModuleNotFoundError as error:
        if error.name != f"bench.{name}":
            raise

        @click.command(name, help=summary, context_settings={"ignore_unknown_options": True})
        @click.argument("arguments", nargs=-1)
        def command(arguments: tuple[str, ...]) -> None:  # noqa: ARG001  Accepts the options of the missing command.
            raise BenchError(
                f"'skylane bench {name}' needs a checkout of the repository, which contains the systems it compares with: "
                f"run it there, after 'make dev'"
            )

    return command


for _command in (
    _checkout_command("baselines", "Compare with the original systems; needs a checkout of the repository."),
    _checkout_command("peers", "Compare with other serving systems; needs a checkout of the repository."),
    clocks,
    gateway,
    renamed_command("doors", gateway),
    engines,
    failover,
    faults,
    link,
    overhead,
    report,
    saturation,
    soak,
    stamping,
    swap,
    tensorflow,
    tls,
    transports,
    vehicle,
):
    bench.add_command(_command)
