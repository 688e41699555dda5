"""Settings of the comparisons with other model servers."""

from dataclasses import dataclass
from pathlib import Path

import click

from analysis.study.scenarios import SCENARIOS as STUDIED
from bench.harness import options
from bench.peers.rig.catalogue import PEERS
from bench.peers.rig.workload import CODECS
from shared.imaging.mask_codecs import MASK_CODECS

OURS = "skylane"
NAMES = (OURS, *PEERS)
ALL = "all"
SCENARIOS = {name: STUDIED[name] for name in ("cold_start", "same_image", "different_images", "mixed_sizes")}


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """Servers, images and number of calls of a comparison."""

    bag: Path = options.bag()
    models: Path = options.models()
    model: str = options.option(
        "road-small", show_default=True, help="Frozen graph for segmentation or classification."
    )
    codec: str = options.option("both", type=click.Choice([*CODECS, "both"]), show_default=True)
    rounds: int = options.rounds(5)
    frames: int = options.frames(20, text="Calls of a turn; twice as many with several clients.")
    clients: int = options.number(8, 2, 64, "Number of clients in throughput turns.")
    wanted_scenarios: tuple[str, ...] = options.choices(
        (*SCENARIOS, ALL),
        (),
        "Scenario of the comparison of 2022 to measure instead of the serving overhead (repeatable). JPEG only.",
        "--scenario",
    )
    mask_codec: str = options.option(
        "raw",  # The peers also send uncompressed masks; no slow link is involved.
        type=click.Choice(list(MASK_CODECS)),
        show_default=True,
        help="Encoding of Skylane's results; the peers send theirs uncompressed.",
    )
    names: tuple[str, ...] = NAMES
    turn_s: float = 30.0  # Maximum duration of half a turn; slow servers get fewer calls.

    @property
    def codecs(self) -> tuple[str, ...]:
        """The codecs to measure."""
        return CODECS if self.codec == "both" else (self.codec,)

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Names of SCENARIOS; empty for the comparison of the serving overhead."""
        return tuple(name for name in SCENARIOS if {name, ALL} & set(self.wanted_scenarios))
