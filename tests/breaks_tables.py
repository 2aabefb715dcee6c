# SPDX-License-Identifier: Apache-2.0
"""Breaks on purpose of tables, each with its test; more of breaks.BREAKS."""
from breaks import of

of("master/data/table_encoder.c", "tests/unit/data/test_tables",
   std_is_of_a_sample=("static double compute_std(", "sum / (double)n", "sum / (double)(n - 1)"),
   missing_values_do_not_count=("static clv_code learn_numbers(", "while (n < rows->n) v[n++] = c->fill;", ""),
   equal_values_have_the_last_quantile=("static double interpolate(", "is_mirrored ? x[middle] < v :", ""),
   unseen_classes_are_the_last=("clv_code clv_table_class_labels(", "if ((size_t)labels[i] == l->n_classes)", "if (false)"),
   rules_may_change=("static clv_code find_source(", "o->scale == c->scale", "true"))
of("master/data/table.c", "tests/unit/data/test_tables",
   broken_records_leave_their_id=("static clv_code read_record(", "return r->t->count++, CLV_OK;", "return r->t->count += 1 + (r->t->broken.n > 0), CLV_OK;"),
   one_field_is_a_header=("static clv_code check_separator(", "if (!strpbrk(", "if (true || !strpbrk("))
of("master/data/table_facts.c", "tests/unit/data/test_tables",
   words_tell_nothing=("static clv_code find_suspicion(", "if (is_pure ||", "if (false ||"))
of("master/plan/run_data.c", "tests/net/training/test_table.py",
   test_records_are_learnt_from=("static clv_code encode_set(", "if (!ds || !clv_dataset_has_table(ds)) return CLV_OK;",
                                 "if (!ds || !clv_dataset_has_table(ds)) return CLV_OK; if (s->skips_labels) { clv_subset all; CLV_TRY(clv_subset_all(ds, &all, err)); CLV_TRY(clv_dataset_learn(ds, &all, &d->learnt, err)); }"))
of("master/run/run_predictions.c", "tests/net/training/test_table.py",
   formulas_stay=("static void append_csv_text(", 'strchr("=+-@\\t\\r", *text)', "false"))
