"""Judges runs by the rules of their scenarios: MLPerf's numbers, unless the study sets others.

The defaults are those of MLPerf Inference (mlperf.conf of its load generator): 600 s in every scenario, 662 queries of 8
samples in the multi-stream scenario, and 24,576 samples in the offline scenario. For scenarios in which MLPerf stops early,
the default is the smallest number of queries that allows it: with n queries of which t exceed a percentile p,
P(X ≤ t | n, 1 − p) ≤ 0.01 must hold for a binomial X. This takes 64 queries for a 90th percentile (t = 1) and 459 to show
that 99 % are within the limit (t = 0). A valid run is not an MLPerf result, because model, data and accuracy differ.
"""

import math
from dataclasses import dataclass

from scipy.stats import binom

from analysis.study.measurement import RunMeasurement, tail_latency
from analysis.study.scenarios import MultiStreamRules, OfflineRules, ServerRules, SingleStreamRules, ValidityRules

VALID, INVALID = "VALID", "INVALID"
INVALID_MEANING = (
    "INVALID by MLPerf's rules: the figures are as measured, but rest on too few frames, or on late or lost ones, to be "
    "compared as that scenario's result. Raise `frames`, or lower the named rule under `scenarios` in the study's file"
)
_LATE_SHARE = 0.01  # Accepted share of queries over the limit, in the server scenario.
_RISK = 0.01  # Accepted probability that a system with a larger share is called valid.


@dataclass(frozen=True, slots=True)
class ValidityVerdict:
    """VALID or INVALID with the reason."""

    validity: str
    reason: str


@dataclass(frozen=True, slots=True)
class _RuleCheck:
    passed: bool
    description: str


def judge(run: RunMeasurement, settings: ValidityRules) -> ValidityVerdict:
    """Judges a run by the rules of its scenario; the reason has each rule's number, and MLPerf's if it differs.

    A run that is INVALID only for its length also has the number of frames that would satisfy the rule.
    """
    unanswered = len(run.measured) - len(run.results)
    answers = f"{unanswered} of {len(run.measured)} frames unanswered" if unanswered else "all answered"
    checks = [
        _at_least("ran", run.seconds, "s", settings, "min_duration_s"),
        *_count_checks(run, settings),
        _RuleCheck(unanswered == 0, answers),
    ]
    if isinstance(settings, ServerRules):
        name, late_ms = tail_latency(run)
        latency = "not measured" if late_ms is None else f"{late_ms:.1f} ms"
        passed = late_ms is not None and late_ms <= settings.limit_ms
        checks.append(_RuleCheck(passed, f"{name} {latency}, limit {settings.limit_ms:g} ms"))
        checks += _late_checks(run, settings)
    failed = [check.description for check in checks if not check.passed]
    if failed:
        return ValidityVerdict(INVALID, "; ".join(failed))
    return ValidityVerdict(VALID, "; ".join(check.description for check in checks))


def _count_checks(run: RunMeasurement, settings: ValidityRules) -> list[_RuleCheck]:
    if isinstance(settings, MultiStreamRules):
        queries = int(run.queries_ms(settings.samples_per_query).count())
        return [
            _at_least("answered", queries, "queries", settings, "min_queries"),
            *_deviation(settings, "samples_per_query", "samples per query"),
        ]
    if isinstance(settings, SingleStreamRules | ServerRules):
        return [_at_least("answered", len(run.results), "queries", settings, "min_queries")]
    if isinstance(settings, OfflineRules):
        return [_at_least("answered", len(run.results), "samples", settings, "min_samples")]
    return []


def _late_checks(run: RunMeasurement, settings: ServerRules) -> list[_RuleCheck]:
    """Checks that the late queries are few enough to show that 99 % are in time, unless the study allows fewer queries."""
    if settings.min_queries < ServerRules.model_fields["min_queries"].default:
        return []
    count, late = len(run.results), int((run.results["total_ms"] > settings.limit_ms).sum())
    passed = float(binom.cdf(late, count, _LATE_SHARE)) <= _RISK
    description = f"{late} of {count} over the limit"
    return [_RuleCheck(passed, description if passed else f"{description}: too many to show that 99 % are in time")]


def _at_least(verb: str, value: float, unit: str, settings: ValidityRules, key: str) -> _RuleCheck:
    minimum = getattr(settings, key)
    mlperf = type(settings).model_fields[key].default
    suffix = " s" if unit == "s" else ""
    changed = "" if minimum == mlperf else f" instead of {mlperf:g}{suffix}"
    shown = f"{value:.1f}" if isinstance(value, float) else str(value)
    rule = f"{key.removesuffix('_s')} {minimum:g}{suffix}{changed}"
    remedy = f": {math.ceil(minimum / value)} times as many frames would satisfy it" if 0 < value < minimum else ""
    return _RuleCheck(value >= minimum, f"{verb} {shown} {unit} with {rule}{remedy}")


def _deviation(settings: ValidityRules, key: str, what: str) -> list[_RuleCheck]:
    """Returns a note if a setting differs from MLPerf's."""
    value, mlperf = getattr(settings, key), type(settings).model_fields[key].default
    return [] if value == mlperf else [_RuleCheck(passed=True, description=f"{value} {what} instead of {mlperf}")]
