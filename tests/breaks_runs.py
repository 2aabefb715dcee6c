# SPDX-License-Identifier: Apache-2.0
"""Breaks on purpose, as breaks.py says: the records of a run, and what a resumed one is told."""
from breaks import of

SPLIT, RESUMED = "tests/unit/data/test_split", "tests/net/operations/test_resumed_data.py"
of("master/data/split.c", SPLIT,
   rare_classes_are_not_held_back=("static size_t give_one_each(", "s->list[i].drawn = 1; places--;", ""),
   a_class_may_be_emptied=("clv_code clv_subset_split(", ".spare = 1", ".spare = 0"),
   groups_are_torn=("static clv_code draw(", "bool groups = d->kind == CLV_SPLIT_GROUPS;", "bool groups = false;"),
   a_fraction_may_be_none=("clv_code clv_subset_split(", "if (fraction > 0 && !d.places) d.places = 1;", ""))
of("master/data/keep.c", SPLIT, labels_stay_where_they_were=("clv_code clv_dataset_keep(", "keep_rows(ds->labels, kept);", ""))
of("master/run/run_data.c", RESUMED,
   other_data_go_on=("static clv_code compare(clv_run", "if (!n || r->o->accept_data)", "if (n < 99)"),
   touched_images_are_others=("static clv_code digest_part(", "if (!labels && same_files)", "if (!labels && !same_files && old)"),
   old_runs_choose_anew=("static clv_code check_old_rules(", "(!held && !limited) ||", "true ||"))
of("master/run/run_begin.c", RESUMED, shrunk_data_finish_a_run=("static clv_code check_left(", "step < whole", "true"))
of("master/run/run_changes.c", RESUMED,
   keys_that_came_are_not_told=("static void compare_lines(", "if (backwards && !now)", "if (false)"),
   another_length_is_not_told=("static void compare_length(", "if (before == after)", "if (before)"))
of("master/history/run_lock.c", RESUMED,
   a_test_is_the_best_of_validations=("void clv_run_lock_evaluation(", "other ? strcmp(e->what, \"validation\") == 0 : is_better(e, best)", "true"))
of("master/report/progress.c", RESUMED,
   a_loss_that_is_not_finite_spoils_the_mean=("static void collect(", "if (isfinite(p->loss))", "if (p)"))
