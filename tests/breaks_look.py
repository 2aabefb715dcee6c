# SPDX-License-Identifier: Apache-2.0
"""Breaks on purpose of the look, each with its test; more of breaks.BREAKS."""
from breaks import of

of("master/look/tokens.c", "tests/unit/look/test_readers",
   the_mean_of_a_place_stays=("static void try_way", "if (how == ALL_LESS_MEAN)", "if (false)"),
   a_place_is_not_a_way=("static void try_way", "double of_place = fit.best > 0 ?", "double of_place = false ?"))
of("master/look/pixels.c", "tests/unit/look/test_readers",
   the_mean_record_stays=("static void look_at_channel", "center(g, g->channel);", ";"))
of("master/look/labels.c", "tests/unit/look/test_readers",
   zeros_are_not_told_apart=("static void read_zeros", "r->length[i] > 0", "false"),
   who_has_no_label_counts=("static size_t number_classes", "if (g->label[i] < 0) continue;", ""))
of("master/plan/look.c", "tests/unit/plan/test_look",
   the_table_has_what_was_read=("static void add_findings", "r->looked = found & ~(r->shows & ~r->looked);", ""),
   a_limit_is_above_itself=("static bool is_above", "look->of[k].figure > readers", "look->of[k].figure >= readers"))

