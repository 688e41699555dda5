"""`skylane model verify`: checks files, determinism and the agreement with the reference of a repository's models."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from cloud.models.engine_benchmark import Candidate, reference
from cloud.models.opening import open_model
from shared.config import ConfigError
from shared.errors import SkylaneError
from shared.inference.model import NOT_DETERMINISTIC, Model, agreement, warmup_images
from shared.inference.table import AUTO
from shared.models.manifest import Placement
from shared.models.repository import Repository

_IMAGES = 4
_MIN_STABILITY = 0.999  # Share of equal labels in two runs; threads may change the order of sums.


@dataclass(frozen=True, slots=True)
class Verification:
    """The results for one version of a model. Verification stops at the first failed check."""

    name: str
    version: str
    engine: str = ""  # Engine and precision, such as "tensorflow fp32".
    checks: tuple[str, ...] = ()  # The passed checks in order.
    failure: str | None = None
    agreement: float | None = None  # Share of labels equal to the reference's; None if the model is its own reference.


def verify(
    repository: Repository, names: tuple[str, ...], placement: Placement, on_model: Callable[[str], None]
) -> list[Verification]:
    """Verifies all versions of the named models, or of all models.

    The checks are: the file's hash, the tensors match the manifest, two runs on the same images agree, and the labels agree
    with the reference; the manifest's `agreement_floor` is the required share. The reference is the model that it was converted
    from, which must be in the repository, or the model itself, on TensorFlow or else the default engine of the format.
    `on_model` is called before each model.

    Raises:
        SkylaneError: the repository or a model does not exist.
    """
    results: list[Verification] = []
    for name in names or repository.names():
        for version in _versions(repository, name):
            on_model(f"{name} {version}")
            results.append(_verify(repository, name, version, placement))
    return results


def _versions(repository: Repository, name: str) -> tuple[str, ...]:
    """Returns a model's versions, or "?" if its manifest is broken."""
    try:
        return repository.versions(name)
    except ConfigError:
        return ("?",)


def _verify(repository: Repository, name: str, version: str, placement: Placement) -> Verification:
    state = Verification(name, version)
    try:
        stored = repository.find(name, None if version == "?" else version)
        state = replace(state, checks=("manifest",))
        stored.file()
        state = replace(state, checks=(*state.checks, "hash"))
        truth = reference(repository, stored)
        engine = truth.engine if stored.manifest.engine == AUTO else stored.manifest.engine
        with open_model(stored, engine, placement) as model:
            model.warm_up(1)  # Raises if the outputs do not match the manifest.
            if stored.manifest.confidence is not None:
                confident = replace(stored, manifest=stored.manifest.with_confidence_head())
                open_model(confident, engine, placement).close()
            state = replace(state, engine=f"{model.engine_name} {model.precision}", checks=(*state.checks, "tensors"))
            return _compare(model, truth, state, placement)
    except SkylaneError as error:
        return replace(state, failure=str(error))


def _compare(model: Model, candidate: Candidate, state: Verification, placement: Placement) -> Verification:
    images = warmup_images(model.card.height, model.card.width, _IMAGES)
    first = model.infer(images)
    if agreement(model.manifest, first, model.infer(images)) < _MIN_STABILITY:
        return replace(state, failure=NOT_DETERMINISTIC)
    state = replace(state, checks=(*state.checks, "steady"))
    source = model.manifest.converted_from
    if source is not None and candidate.stored.name == state.name:
        problem = f"the repository lacks the model it was converted from ({source.model}, {source.sha256[:12]}…)"
        return replace(state, failure=problem)
    if (candidate.stored.name, f"{candidate.engine} {candidate.precision}") == (state.name, state.engine):
        return state  # The model is its own reference.
    with candidate.open(placement) as truth:
        if truth.input_shape != model.input_shape:
            return replace(state, failure=f"takes images of another size than {candidate.stored.name}")
        share = agreement(model.manifest, truth.infer(images), first)
    floor = model.manifest.agreement_floor
    if share < floor:
        reference_name = candidate.label(state.name)
        problem = f"{100 * share:.3f} % of its labels equal those of {reference_name}, its floor is {100 * floor:g} %"
        return replace(state, agreement=share, failure=problem)
    return replace(state, agreement=share, checks=(*state.checks, "agreement"))
