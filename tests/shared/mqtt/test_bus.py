import pytest

from shared.mqtt.packets import matches


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/b/c", "a/b", False),
        ("a/+/c", "a/b/c", True),
        ("a/+", "a/b/c", False),
        ("+/+", "a/b", True),
        ("a/#", "a/b/c", True),
        ("a/#", "a", True),
        ("#", "a/b", True),
        ("a/b", "A/b", False),
        ("$share/g/a/+", "a/b", True),
        ("$share/g/a/+", "b/b", False),
    ],
)
def test_filters_match_topics(topic_filter: str, topic: str, *, expected: bool) -> None:
    """The bus chooses the handlers of a message by the rules of brokers (MQTT 5.0, section 4.7)."""
    assert matches(topic_filter, topic) is expected
