"""Settings of the comparisons."""

from dataclasses import dataclass
from pathlib import Path

from bench.peers.rig.catalogue import PEERS
from bench.peers.rig.workload import CODECS

OURS = "skylane"
NAMES = (OURS, *PEERS)
MASK_CODEC = "raw"  # The peers also send uncompressed masks; no slow link is involved.


@dataclass(frozen=True, slots=True)
class Plan:
    """Servers, images and number of calls of a comparison."""

    bag: Path
    models: Path
    model: str = "road-small"
    names: tuple[str, ...] = NAMES
    codecs: tuple[str, ...] = CODECS
    rounds: int = 5
    frames: int = 20  # Calls of a turn with one image in flight; twice as many with several clients.
    clients: int = 8
    mask_codec: str = MASK_CODEC  # Encoding of Skylane's masks; the peers do not compress theirs.
    scenarios: tuple[str, ...] = ()  # Names of SCENARIOS, for the scenario comparison; empty for the load comparison.
    turn_s: float = 30.0  # Maximum duration of half a turn; slow servers get fewer calls.
