"""The four scenarios of the comparison of 2022: which pictures each calls with."""

from dataclasses import replace

from bench.load.playback import Plan as Pictures
from bench.peers.load_comparison.plan import Plan
from bench.study.plan.sample_drives import footage
from bench.study.plan.scenarios import SCENARIOS as STUDIED
from bench.study.plan.scenarios import Footage
from shared.imaging.geometry import Resize

SCENARIOS = {name: STUDIED[name] for name in ("cold_start", "same_image", "different_images", "mixed_sizes")}

_CAMERA = "1936x1216"  # Of whose pictures the mixed sizes are made.


def pictures(plan: Plan, name: str) -> Pictures:
    """What a scenario's frames are made of: JPEGs all.

    They are as large as the model's input, but for the mixed sizes: those the server stretches, for that is the one
    way to bring a picture to a size in which no two servers need to agree on what is cut off or padded.
    """
    drive = Pictures(plan.bag, plan.models, plan.model, frames=plan.frames)
    match SCENARIOS[name].footage:
        case Footage.ONE:
            return replace(drive, frames=1)
        case Footage.DRIVE:
            return drive
        case Footage.MIXED:
            folder = footage(Footage.MIXED, _CAMERA, plan.frames)
            return replace(drive, bag=folder, resize=Resize.STRETCH, resize_at="cloud")
