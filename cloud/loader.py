"""The loader: how a worker opens a model of its repository, at its start and while frames flow."""

from collections.abc import Callable
from dataclasses import dataclass

from cloud.engines.engine import Placement
from cloud.isolation.engine import Limits
from cloud.model import Model
from cloud.repository import Repository


@dataclass(frozen=True, slots=True)
class Loader:
    """A repository, and how the models in it are to run."""

    repository: Repository
    say: Callable[[str], None]  # Told in a line what was loaded and how warm it is.
    placement: Placement = Placement()  # noqa: RUF009 - frozen.
    max_batch: int | None = None  # None: as each model's manifest says; so for the two below.
    warm_up_runs: int | None = None
    engine: str | None = None
    isolated: bool = False  # Whether each engine runs in a process of its own, and
    limits: Limits = Limits()  # noqa: RUF009 - frozen. What such a process may take.

    def load(self, name: str, version: str | None = None) -> Model:
        """Check a model's file, open it and warm it up; of several versions the highest where none is named.

        Raises:
            SkylaneError: as `Repository.load`; InstancesError where its engine infers one batch at a time and is to infer
                more; InferenceError where it fails in its warm-up.
        """
        model = self.repository.load(
            name,
            self.placement,
            self.max_batch,
            version=version,
            engine=self.engine,
            isolated=self.isolated,
            limits=self.limits,
        )
        try:
            if self.placement.instances is not None:
                model.instances = self.placement.instances
            runs_ms = model.warm_up(self.warm_up_runs)
        except BaseException:
            model.close()
            raise
        warm = f", cold {runs_ms[0]:.0f} ms, warm {runs_ms[-1]:.0f} ms" if runs_ms else ", not warmed up"
        self.say(f"{model.describe()}{warm}")
        return model
