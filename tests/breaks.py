# SPDX-License-Identifier: Apache-2.0
"""Breaks on purpose, each of which a test has to notice: what tests/check-breaks tries.

A break is a name, a file, edits and a test. An edit is (in, old, new): `old` has exactly one place
within the braces that open behind the text `in` (a function, a row of a table; "" is the whole
file), and becomes `new`. Spaces and line ends between words do not count. The test is a program
below the build's folder with its arguments.
"""
import collections

Break = collections.namedtuple("Break", "name path edits test")
BREAKS = []


def of(path, test, **edits):
    """Breaks of one file; a name's _ are spaces; one edit or a list of them."""
    for name, e in edits.items():
        BREAKS.append(Break(name.replace("_", " "), path, e if isinstance(e, list) else [e], test))


# ---- shares of the cores -------------------------------------------------------------------------
of("common/fair/scheduler.c", "tests/unit/fair/test_scheduler",
   a_tenant_starts_with_what_it_saved=("static void arrive", "of->time = CLV_MAX(of->time, least_tenant(s->at));", ";"),
   a_share_starts_with_what_it_saved=("static void arrive", "s->time = CLV_MAX(s->time, least_share(of));", ""),
   threads_are_charged_as_one=("static void charge", "spent * s->held", "spent"),
   weights_do_not_count=("static void charge", "(threads + s->of->weight - 1) / s->of->weight", "threads"),
   the_last_that_asked_is_first=("static clv_share *first_of", "s->asked < first->asked", "s->asked > first->asked"),
   small_ones_overtake=("static void let_in", "s->wanted <= t->free", "t->free"),
   a_slice_has_no_length=("static bool over", "|| now - s->began < s->at->o.slice_ns", ""),
   a_stopped_share_waits=("static void wait", "s->waiting && !s->stopped", "s->waiting"))

# ---- accounts ------------------------------------------------------------------------------------
of("common/fair/account.c", "tests/unit/fair/test_account",
   a_refused_charge_stays=("clv_account *clv_account_try", "take_back(a, at, q, n);", ""),
   a_discharge_counts_below_alone=("void clv_account_discharge", "take_back(a, NULL, q, n);", "take_back(a, a->o.above, q, n);"),
   strangers_numbers_are_told=("clv_code clv_account_refuse", "if (a->o.shared)", "if (false)"))

# ---- sums of chunks ------------------------------------------------------------------------------
of("common/link/crc.c", "tests/unit/link/test_crc",
   a_chunk_counts_wherever_it_is=("uint32_t clv_crc32c_shift", "crc = times(crc, powers[k % POWERS]);", "crc = times(crc, powers[0]);"))
