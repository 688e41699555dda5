"""`skylane bench`: benchmarks that report ratios measured in one run."""

from importlib import import_module

import click

from bench.harness.child import BenchError
from bench.harness.options import renamed_command
from shared.runtime.processes import interrupt_on_termination

# The modules of the commands.
BENCHES = {
    "batch": "bench.batch.throughput",
    "clocks": "bench.performance.clock_accuracy",
    "engines": "bench.engines.engine_comparison",
    "failover": "bench.resilience.failover",
    "faults": "bench.faults.cli",
    "fleet": "bench.fleet.fleet_bench",
    "freshness": "bench.freshness.freshness_bench",
    "gateway": "bench.performance.gateway",
    "link": "bench.link.cli",
    "overhead": "bench.performance.overhead",
    "presenting": "bench.performance.presenting",
    "report": "bench.performance.report_cost",
    "saturation": "bench.performance.saturation",
    "soak": "bench.resilience.soak",
    "stamping": "bench.performance.stamping",
    "swap": "bench.resilience.model_swap",
    "tensorflow": "bench.engines.tensorflow_comparison",
    "tls": "bench.performance.tls",
    "transports": "bench.performance.transports",
    "vehicle": "bench.performance.vehicle",
}
# Commands whose packages the wheel does not contain, with their help there.
CHECKOUT_BENCHES = {
    "baselines": "Compare with the original systems; needs a checkout of the repository.",
    "peers": "Compare with other serving systems; needs a checkout of the repository.",
}


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


for _name, _module in BENCHES.items():
    bench.add_command(getattr(import_module(_module), _name))
for _name, _summary in CHECKOUT_BENCHES.items():
    bench.add_command(_checkout_command(_name, _summary))
bench.add_command(renamed_command("doors", bench.commands["gateway"]))
