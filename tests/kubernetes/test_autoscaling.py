"""The numbers of the autoscalers, which the guide explains."""

from tests.kubernetes.rendering import ROOT, kinds, needs_kubectl

pytestmark = needs_kubectl
GUIDE = (ROOT / "docs" / "guides" / "kubernetes.md").read_text(encoding="utf-8")


def test_the_wait_adds_workers_and_the_processors_keep_them() -> None:
    """With the wait alone, the number of workers would swing: it is nearly zero while there are enough."""
    (scaler,) = kinds("autoscaling/keda", "ScaledObject")
    spec = scaler["spec"]
    values = {each["type"]: each["metadata"] for each in spec["triggers"]}
    assert (values["prometheus"]["threshold"], values["cpu"]["value"]) == ("0.25", "70")
    assert values["prometheus"]["ignoreNullValues"] == "false"
    assert spec["pollingInterval"] == 15
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert [
        (behavior[way]["stabilizationWindowSeconds"], behavior[way]["policies"]) for way in ("scaleUp", "scaleDown")
    ] == [
        (0, [{"type": "Pods", "value": 2, "periodSeconds": 60}]),
        (300, [{"type": "Pods", "value": 1, "periodSeconds": 180}]),
    ]
    for text in (
        "every 15 s",
        "by 0.25 s",
        "70 % of",
        "at most two workers a minute",
        "one worker in three minutes, after five",
    ):
        assert text in GUIDE


def test_both_autoscalers_have_the_same_limits() -> None:
    """The plain autoscaler is the second trigger of KEDA without the first one."""
    (plain,) = kinds("autoscaling/hpa", "HorizontalPodAutoscaler")
    (scaler,) = kinds("autoscaling/keda", "ScaledObject")
    keda = scaler["spec"]
    assert [plain["spec"][key] for key in ("minReplicas", "maxReplicas")] == [
        keda[key] for key in ("minReplicaCount", "maxReplicaCount")
    ]
    (cpu,) = [each for each in keda["triggers"] if each["type"] == "cpu"]
    (metric,) = plain["spec"]["metrics"]
    assert str(metric["resource"]["target"]["averageUtilization"]) == cpu["metadata"]["value"]
    assert plain["spec"]["minReplicas"] >= 2
