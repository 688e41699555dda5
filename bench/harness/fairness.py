"""How evenly something is shared."""

from collections.abc import Sequence


def jain(shares: Sequence[float]) -> float:
    """Jain's index, (Σx)² / (n·Σx²): 1 where all have the same, 1/n where one has all; 1 where nobody has anything.

    Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def max_min_shares(wanted: Sequence[float], capacity: float) -> list[float]:
    """What each gets of `capacity` where nobody gets more than it wants, and none more than one that wants yet more.

    By filling: whoever wants less than an equal part of what is left gets all of it (Bertsekas and Gallager, "Data
    Networks", 1992, section 6.5.2).
    """
    shares = [0.0] * len(wanted)
    left = capacity
    by_want = sorted(range(len(wanted)), key=lambda place: wanted[place])
    for done, place in enumerate(by_want):
        shares[place] = min(wanted[place], left / (len(wanted) - done))
        left -= shares[place]
    return shares
