"""What the contest measures, and how often."""

from dataclasses import dataclass
from pathlib import Path

from bench.peers.rig.catalogue import PEERS
from bench.peers.rig.workload import CODECS

OURS = "skylane"
NAMES = (OURS, *PEERS)
MASK_CODEC = "raw"  # What the peers send, and nothing here travels over a link.


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured and how often."""

    bag: Path
    models: Path
    model: str = "road-small"
    names: tuple[str, ...] = NAMES
    codecs: tuple[str, ...] = CODECS
    rounds: int = 5
    frames: int = 20  # A turn with one picture in flight; twice as many with several clients.
    clients: int = 8
    mask_codec: str = MASK_CODEC  # Of Skylane's answers; the peers send theirs unpacked.
    scenarios: tuple[str, ...] = ()  # Of SCENARIOS, for the trial; the contest has none.
    turn_s: float = 30.0  # Half a turn takes no longer: a slow server is called less often, and its n tells.
