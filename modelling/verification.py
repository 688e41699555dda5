"""`model verify`: whether the models of a repository are whole, steady, and as good as what they were converted from."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from cloud.engines.engine import AUTO, Placement
from cloud.models.agreement import agreement
from cloud.models.engine_benchmark import reference
from cloud.models.model import NOT_DETERMINISTIC, Model
from cloud.models.repository import Repository
from cloud.models.warmup_images import pictures
from shared.config import ConfigError
from shared.errors import SkylaneError

_PICTURES = 4
_STEADY = 0.999  # Of labels: threads may sum in another order from run to run.


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found of one version of a model. The checks stop at the first that fails."""

    name: str
    version: str
    engine: str = ""  # "tensorflow fp32"
    checks: tuple[str, ...] = ()  # That it passed, in order.
    failure: str | None = None
    agreement: float | None = None  # Of labels with the reference's; None where it is its own.


def verify(
    repository: Repository, names: tuple[str, ...], placement: Placement, on_model: Callable[[str], None]
) -> list[Verification]:
    """Check all versions of some models, of all where none is named; `on_model` is told each before.

    ValidatedText are the file's hash, that its tensors are there and fit the manifest, that two runs on the same pictures
    agree, and that its labels agree with those of the model it was converted from, or with TensorFlow's where another
    engine runs it, as its `agreement_floor` wants.

    Raises:
        SkylaneError: there is no such repository or model.
    """
    found: list[Verification] = []
    for name in names or repository.names():
        for version in _versions(repository, name):
            on_model(f"{name} {version}")
            found.append(_verified(repository, name, version, placement))
    return found


def _versions(repository: Repository, name: str) -> tuple[str, ...]:
    """A model's versions; where its manifest, which tells the only one, is broken, an unknown one that fails."""
    try:
        return repository.versions(name)
    except ConfigError:
        return ("?",)


def _verified(repository: Repository, name: str, version: str, placement: Placement) -> Verification:
    state = Verification(name, version)
    try:
        manifest = repository.manifest(name, None if version == "?" else version)
        state = replace(state, checks=("manifest",))
        repository.file(name, version)
        state = replace(state, checks=(*state.checks, "hash"))
        own = None if manifest.engine != AUTO else reference(repository, name, version).engine
        with repository.load(name, placement, version=version, engine=own) as model:
            model.warm_up(1)  # Fails where the answers do not fit the manifest.
            state = replace(state, engine=f"{model.engine_name} {model.precision}", checks=(*state.checks, "tensors"))
            return _compared(repository, model, state, placement)
    except SkylaneError as error:
        return replace(state, failure=str(error))


def _compared(repository: Repository, model: Model, state: Verification, placement: Placement) -> Verification:
    shown = pictures(model.card.height, model.card.width, _PICTURES)
    first = model.infer(shown)
    if agreement(model.manifest, first, model.infer(shown)) < _STEADY:
        return replace(state, failure=NOT_DETERMINISTIC)
    state = replace(state, checks=(*state.checks, "steady"))
    held = reference(repository, state.name, state.version)
    source = model.manifest.converted_from
    if source is not None and held.model == state.name:
        return replace(
            state, failure=f"the model it was converted from ({source.model}, {source.sha256[:12]}…) is not here"
        )
    if (held.model, f"{held.engine} {held.precision}") == (state.name, state.engine):
        return state  # It is its own reference.
    where = replace(placement, precision=held.precision)
    with repository.load(held.model, where, version=held.version, engine=held.engine) as truth:
        if truth.input_shape != model.input_shape:
            return replace(state, failure=f"takes pictures of another size than {held.model}")
        share = agreement(model.manifest, truth.infer(shown), first)
    floor = model.manifest.agreement_floor
    if share < floor:
        told = (
            f"{100 * share:.3f} % of its labels are those of {held.beside(state.name)}, its floor is {100 * floor:g} %"
        )
        return replace(state, agreement=share, failure=told)
    return replace(state, agreement=share, checks=(*state.checks, "agreement"))
