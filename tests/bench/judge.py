# SPDX-License-Identifier: Apache-2.0
"""Decides whether a row has missed its target or was only measured on a noisy machine."""
import statistics

LEAST_ROUNDS, NOISE = 15, 0.03


def quartiles(ratios):
    """(lower, median, upper)"""
    if len(ratios) == 1:
        return (ratios[0],) * 3
    return tuple(statistics.quantiles(ratios, n=4, method="inclusive"))


def itself(ours):
    """How far our side differs from itself: every second round compared with the others. With twins
    (harness.py) these are rounds of two processes of the same program."""
    if len(ours) < 2:
        return 0.0
    return abs(statistics.median(ours[::2]) / statistics.median(ours[1::2]) - 1)


def strictly(ratios, ours, target, at_most=True, timed=True):
    """`ok`: the median meets the target. `near`: it does not, but the better quartile does.
    `MISSED`: neither does. `not judged: why`: neither does, in too few rounds or where our side
    differs from itself by more than NOISE. A row that is not timed (memory) needs neither many
    rounds nor a quiet machine."""
    low, middle, high = quartiles(ratios)
    meets = lambda ratio: ratio <= target if at_most else ratio >= target
    if meets(middle):
        return "ok"
    if meets(low if at_most else high):
        return "near"
    if timed and len(ratios) < LEAST_ROUNDS:
        return f"not judged: {len(ratios)} rounds"
    if timed and itself(ours) > NOISE:
        return f"not judged: itself {100 * itself(ours):.1f} %"
    return "MISSED"
