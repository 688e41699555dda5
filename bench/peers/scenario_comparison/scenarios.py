"""The four scenarios of the comparison of 2022, and the images that each of them sends."""

from dataclasses import replace

from bench.load.playback import PlaybackSettings
from bench.peers.load_comparison.plan import Plan
from bench.study.plan.sample_drives import footage
from bench.study.plan.scenarios import SCENARIOS as STUDIED
from bench.study.plan.scenarios import Footage
from shared.imaging.geometry import Resize

SCENARIOS = {name: STUDIED[name] for name in ("cold_start", "same_image", "different_images", "mixed_sizes")}

_CAMERA = "1936x1216"  # Size of the images from which the mixed sizes are made.


def pictures(plan: Plan, name: str) -> PlaybackSettings:
    """Returns the playback settings for the frames of a scenario, which are all JPEG images.

    The images have the size of the model's input, except for the mixed sizes. The server stretches those, because
    stretching is the only resize method that needs no agreement between servers on cropping or padding.
    """
    drive = PlaybackSettings(plan.bag, plan.models, plan.model, frames=plan.frames)
    match SCENARIOS[name].footage:
        case Footage.ONE:
            return replace(drive, frames=1)
        case Footage.DRIVE:
            return drive
        case Footage.MIXED:
            folder = footage(Footage.MIXED, _CAMERA, plan.frames)
            return replace(drive, bag=folder, resize=Resize.STRETCH, resize_at="cloud")
