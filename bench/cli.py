"""`python -m bench`: benchmarks that report ratios measured in one run."""

import click

from shared.lazy_group import CommandEntry, LazyGroup
from shared.runtime.processes import interrupt_on_termination

BENCHES = {
    name: CommandEntry(f"{module}:{name}", "dev", summary)
    for name, module, summary in (
        ("baselines", "bench.baselines.cli", "Compare with the original systems."),
        ("batch", "bench.batch", "Compare `skylane batch` with the engine alone."),
        ("codecs", "bench.codecs", "Compare codecs of frames: accuracy, bytes and time."),
        ("failover", "bench.failover", "Kill or stop a worker while vehicles play."),
        ("fleet", "bench.fleet.fleet_bench", "Let 1 to 200 vehicles send frames to 1 to 8 workers."),
        ("freshness", "bench.freshness.freshness_bench", "Compare presenters on recorded drives."),
        ("gateway", "bench.load", "Run clients at all endpoints of one worker at once."),
        ("overhead", "bench.overhead", "Compare the whole round trip with direct inference."),
        ("peers", "bench.peers.cli", "Compare with other serving systems."),
        ("saturation", "bench.load", "Offer a worker more than it can do."),
        ("tensorflow", "bench.tensorflow_variants", "Compare variants of running a frozen graph."),
        ("tls", "bench.tls", "Compare a broker with TLS with a plain one."),
    )
}


@click.group(cls=LazyGroup, entries=BENCHES, context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def bench(context: click.Context) -> None:
    """Measure the cost of offloading, as ratios to bare inference."""
    context.with_resource(interrupt_on_termination())  # Ends the child processes of a benchmark with it.
