#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make bench STRICT=1 on planted numbers: which figures fail a row, and which are accepted as noise
of the machine."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../net/lib")]
import judge
from cluster import Suite

suite = Suite()
STEADY = [100.0, 101.0] * 8
NOISY = [100.0, 104.0] * 8
AROUND = [-0.02, -0.01, 0.0, 0.01] * 4  # spread of a planted ratio


def ratios(middle):
    return [middle + d for d in AROUND]


@suite.test
def strict_passes_what_the_median_meets():
    assert judge.strictly(ratios(0.80), STEADY, 0.80) == "ok"
    assert judge.strictly(ratios(0.80), NOISY, 0.80) == "ok"
    assert judge.strictly(ratios(0.80), STEADY, 0.79, at_most=False) == "ok"


@suite.test
def strict_needs_the_quartile_to_miss_too():
    assert judge.strictly(ratios(0.81), STEADY, 0.80) == "near"
    assert judge.strictly(ratios(0.84), STEADY, 0.80) == "MISSED"
    assert judge.strictly(ratios(0.79), STEADY, 0.79, at_most=False) == "near"
    assert judge.strictly(ratios(0.76), STEADY, 0.79, at_most=False) == "MISSED"


@suite.test
def strict_gives_no_verdict_when_own_rounds_are_noisy():
    assert judge.strictly(ratios(0.9), NOISY, 0.80) == "not judged: itself 3.8 %"
    assert judge.strictly(ratios(0.9), [100.0, 102.9] * 8, 0.80) == "MISSED"
    assert judge.strictly(ratios(0.9), NOISY, 0.80, timed=False) == "MISSED"


@suite.test
def strict_needs_fifteen_rounds():
    assert judge.strictly([0.9] * 14, [100.0] * 14, 0.80) == "not judged: 14 rounds"
    assert judge.strictly([0.9] * 15, [100.0] * 15, 0.80) == "MISSED"
    assert judge.strictly([0.9], [100.0], 0.80, timed=False) == "MISSED"


@suite.test
def strict_computes_quartiles_over_all_rounds():
    assert judge.quartiles([4.0, 1.0, 2.0, 3.0, 5.0]) == (2.0, 3.0, 4.0)
    assert judge.quartiles([7.0]) == (7.0, 7.0, 7.0)
    assert abs(judge.itself([100.0, 98.0, 100.0, 98.0]) - 2 / 98) < 1e-12


@suite.test
def strict_fails_the_whole_run():
    """Through harness.py: its rows, its last lines and its exit code."""
    os.environ["STRICT"] = "1"
    sys.argv = [sys.argv[0], "build/none"]
    import harness
    harness.write_row = harness.rows.append  # writes nothing to build/bench

    def planted(middle, ours):
        return lambda: harness.enter("planted", "ms", [((o, o / r), 0.0) for o, r in zip(ours, ratios(middle))],
                                     0.8)

    for middle, ours, code, result in ((0.7, STEADY, 0, "ok"), (0.9, STEADY, 1, "MISSED"),
                                        (0.9, NOISY, 0, "not judged: itself 3.8 %"), (0.81, STEADY, 0, "near")):
        harness.rows.clear()
        group = planted(middle, ours)
        group.__name__ = "group"
        assert harness.main([group], []) == code, (middle, result)
        assert harness.rows[0]["result"] == result, harness.rows


if __name__ == "__main__":
    suite.main()
