"""The reasons for which frames get no result, as a few fixed words: metrics cannot count free text.

Reasons are written for people. They contain numbers, names and, in a worker's reply, whatever the worker says.
"""

OTHER = "other"
# Words that are reasons themselves, or their start up to a colon.
_WORDS = frozenset(
    {"deadline", "window", "stopped", "no_worker", "no_broker", "link_jammed", "too_large", "undecodable", "poison"}
)
# Parts of the texts of the vehicle and of the worker.
_PARTS = (
    ("no longer waits", "client_gone"),
    ("passed while the frame waited", "expired_in_queue"),
    ("passed before inference", "expired_before_inference"),
    ("inference would end after", "too_late"),
    ("after the deadline", "answered_late"),
    ("no answer", "no_answer"),
    ("the run ended", "run_ended"),
    ("not served", "not_served"),
    ("frames are waiting", "queue_full"),
    ("is blocked for", "blocked"),
    ("internal error", "internal_error"),
    ("cannot be used", "unusable_result"),
    ("exceeds the limit", "too_large"),
    ("exceed the limit", "too_large"),
)
LABELS = ("", *sorted({*_WORDS, *(label for _, label in _PARTS)}), OTHER)  # All that `reason_label` returns.


def reason_label(reason: str) -> str:
    """Returns the word for a reason; empty for an empty reason, `other` for an unknown one."""
    word = reason.partition(":")[0]
    if not reason or word in _WORDS:
        return word
    return next((label for part, label in _PARTS if part in reason), OTHER)
