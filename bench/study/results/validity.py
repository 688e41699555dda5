"""Whether a run keeps the rules of its scenario: MLPerf's by their numbers, unless the study sets others.

The defaults are those of MLPerf Inference (mlperf.conf of its load generator): 600 s in every scenario; 662 queries of
8 samples in the multi-stream scenario; 24,576 samples in the offline one. Where MLPerf stops early instead of counting,
the least number that can stop: with n queries of which t are over a percentile p, P(X ≤ t | n, 1 − p) ≤ 0.01 has to
hold for a binomial X; that takes 64 queries to tell a 90th percentile (t = 1) and 459 to show that 99 % are in time
(t = 0). A valid run here is no MLPerf result: its model, data and accuracy are others.
"""

from dataclasses import dataclass

from scipy.stats import binom

from bench.study.plan.scenarios import MultiStreamRules, OfflineRules, ServerRules, SingleStreamRules, ValidityRules
from bench.study.results.measurement import RunMeasurement, tail_latency

VALID, INVALID = "VALID", "INVALID"
_LATE_SHARE = 0.01  # Of a server's queries.
_RISK = 0.01  # That a system with more late ones is called valid.


@dataclass(frozen=True, slots=True)
class ValidityVerdict:
    """VALID or INVALID with the reason; both empty where a scenario has no rules."""

    validity: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Finding:
    holds: bool
    told: str


def judge(run: RunMeasurement, settings: ValidityRules) -> ValidityVerdict:
    """Judge a run by the rules of its scenario; the reason names each rule, its number, and MLPerf's where it differs."""
    unanswered = len(run.measured) - len(run.answered)
    findings = [
        _at_least("ran", run.seconds, "s", settings, "min_duration_s"),
        *_counted(run, settings),
        _Finding(
            unanswered == 0, f"{unanswered} of {len(run.measured)} frames unanswered" if unanswered else "all answered"
        ),
    ]
    if isinstance(settings, ServerRules):
        name, late_ms = tail_latency(run)
        told = f"{name} {'not measured' if late_ms is None else f'{late_ms:.1f} ms'}, limit {settings.limit_ms:g} ms"
        findings.append(_Finding(late_ms is not None and late_ms <= settings.limit_ms, told))
        findings += _in_time(run, settings)
    broken = [finding.told for finding in findings if not finding.holds]
    if broken:
        return ValidityVerdict(INVALID, "; ".join(broken))
    return ValidityVerdict(VALID, "; ".join(finding.told for finding in findings))


def _counted(run: RunMeasurement, settings: ValidityRules) -> list[_Finding]:
    if isinstance(settings, MultiStreamRules):
        queries = int(run.queries_ms(settings.samples_per_query).count())
        return [
            _at_least("answered", queries, "queries", settings, "min_queries"),
            *_as_mlperf(settings, "samples_per_query", "samples a query"),
        ]
    if isinstance(settings, SingleStreamRules | ServerRules):
        return [_at_least("answered", len(run.answered), "queries", settings, "min_queries")]
    if isinstance(settings, OfflineRules):
        return [_at_least("answered", len(run.answered), "samples", settings, "min_samples")]
    return []


def _in_time(run: RunMeasurement, settings: ServerRules) -> list[_Finding]:
    """Whether as many were in time as show that 99 % are; a study that asks for too few to show it is not held to it."""
    if settings.min_queries < ServerRules.model_fields["min_queries"].default:
        return []
    count, late = len(run.answered), int((run.answered["total_ms"] > settings.limit_ms).sum())
    chance = float(binom.cdf(late, count, _LATE_SHARE))
    told = f"{late} of {count} over the limit"
    if chance <= _RISK:
        return [_Finding(holds=True, told=told)]
    return [_Finding(holds=False, told=f"{told}: too many to tell from so few that 99 % are in time")]


def _at_least(verb: str, value: float, unit: str, settings: ValidityRules, key: str) -> _Finding:
    least = getattr(settings, key)
    rule = type(settings).model_fields[key].default
    of = " s" if unit == "s" else ""
    changed = "" if least == rule else f" instead of {rule:g}{of}"
    shown = f"{value:.1f}" if isinstance(value, float) else str(value)
    return _Finding(value >= least, f"{verb} {shown} {unit} with {key.removesuffix('_s')} {least:g}{of}{changed}")


def _as_mlperf(settings: ValidityRules, key: str, what: str) -> list[_Finding]:
    value, rule = getattr(settings, key), type(settings).model_fields[key].default
    return [] if value == rule else [_Finding(holds=True, told=f"{value} {what} instead of {rule}")]
