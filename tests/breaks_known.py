# SPDX-License-Identifier: Apache-2.0
"""Deliberate breaks, see breaks.py: what workers know from earlier sessions, and orders."""
from breaks import of

KNOWN = "tests/net/hostile/test_known.py"
of("master/plan/known_layers.c", KNOWN,
   keys_that_workers_had_are_forgotten=("static clv_code look_up_param(", 'return look_up_hash(r, k, CLV_LEDGER_KEY, &of, "was", " in an earlier session, by its key", err);', "return CLV_OK;"),
   what_a_run_gave_away_is_forgotten=("static clv_code look_up_param(", "if (run_secret) {", "if (!r) {"),
   what_a_worker_begins_with_is_secret=("static clv_code add_worker_weight_hashes(", "r->n_worker_weight_hashes += n;", ""),
   other_forms_are_secret=("static clv_code look_up_sample(", "uses_all_values < 2", "uses_all_values < 0"),
   secret_files_are_not_looked_up=("static clv_code look_up_stage_files(", "if (is_at_master && !spec->weights_secret) return CLV_OK;", "if (is_at_master && spec) return CLV_OK;"))
of("master/train/save.c", KNOWN,
   weights_that_were_trained_there_are_not_noted=("static clv_code save_state(", "CLV_TRY(clv_trainer_note_values(t, i, s.samples, s.n, err));", ""))
of("master/train/send_state.c", KNOWN,
   weights_that_are_given_are_not_noted=("static clv_code note_values_in_ledger(", "if (code == CLV_OK) code = clv_trainer_note_values(t, stage, samples, n, err);", ""))
of("master/train/modules.c", KNOWN,
   what_never_left_is_noted=("static clv_code prepare_trainer(", "CLV_TRY(clv_trainer_check_ledger(t, err));", "for (uint32_t i = 0; i < t->b->n_stages; i++) CLV_TRY(clv_trainer_note_keys(t, i, err));"))
of("master/train/ledger_notes.c", KNOWN,
   trials_are_noted=("static bool belongs_in_ledger(", "return t->use != CLV_TRAINER_TRIAL /* a trial's seed is discarded */ &&", "return"))
of("master/egress/weights_sample.c", "tests/unit/plan/test_samples",
   a_tensor_is_named_by_its_front=("static size_t part_begin_index(", "part * (s->n_values - s->part_len) / (s->n_parts - 1)", "part * s->part_len"),
   a_factor_makes_another_spread=("static bool compute_full_moments(", "angle = atan2(z[1], z[0]);", "angle = 0;"),
   a_piece_of_a_tensor_has_its_form=("static bool has_all_values(", "s->value_sums.n == s->n_values", "s->value_sums.n"))
of("master/plan/known_layers.c", KNOWN,
   the_order_of_many_weights_hides_them=("static clv_code look_up_sample(", "uses_all_values < 2", "uses_all_values < 1"))
of("master/plan/label_order.c", "tests/unit/plan/test_samples",
   periods_are_no_order=("clv_label_order_stats clv_label_order_compute(", "return is_significant(&best_order, MIN_LAG_SIGMAS, lag_standard_deviation) ? best_order : (clv_label_order_stats){0};", "return (clv_label_order_stats){0};"),
   few_blocks_are_chance=("clv_label_order_stats clv_label_order_compute(", "has_few_blocks(&neighbour_order, s.n_classes, n) ? MIN_FEW_BLOCKS_SIGMAS : MIN_NEIGHBOUR_SIGMAS", "2 * MIN_NEIGHBOUR_SIGMAS"))
of("master/data/labels.c", KNOWN,
   only_one_label_has_an_order=("bool clv_dataset_label_hash(", "if (!ds->labels || record >= ds->count) return false;", "return false;"))
of("master/egress/ledger_file.c", "tests/unit/egress/test_ledger",
   two_may_add_at_once=("static clv_code open_and_lock(", "return lock_file(f, err);", "return f->fd < 0 ? lock_file(f, err) : CLV_OK;"),
   a_cut_line_stays=("static clv_code append_lines(", "if (ftruncate(f->fd, (off_t)at) != 0)", "if (!at)"),
   a_full_ledger_is_not_compacted=("static clv_code format_change(", "return has_room || !ret->lines.len ? CLV_OK : format_compacted_file(f, k->ledger, ret, err);", 'return has_room || !ret->lines.len ? CLV_OK : fail_ledger_file(f, "written", "it is full", err);'),
   each_addition_reads_the_whole_ledger=("static clv_code refresh_kept_ledger(", "if (!is_kept_file(k, f, &now)) {", "if (!is_kept_file(k, f, &now) || k->ledger) {"),
   a_longer_file_is_the_same=("static bool is_kept_file(", "now->st_size > was->st_size && has_same_last_bytes(f, k->ledger)", "now->st_size > was->st_size"),
   a_file_of_the_same_size_is_the_same=("static bool is_kept_file(", "return now->st_mtim.tv_sec == was->st_mtim.tv_sec && now->st_mtim.tv_nsec == was->st_mtim.tv_nsec;", "return true;"),
   a_ledger_that_is_gone_is_kept=("static clv_code open_kept_ledger(", "drop_kept_ledger(k); return clv_ledger_new(&k->ledger, err);", "return k->ledger ? CLV_OK : clv_ledger_new(&k->ledger, err);"),
   lines_go_to_a_file_that_is_gone=("static clv_code open_locked_for_append(", "while (is_replaced(f)) {", "while (is_replaced(f) && !f->path.data) {"))
of("master/egress/ledger.c", "tests/unit/egress/test_ledger",
   compacting_keeps_all=("clv_code clv_ledger_compact(", "if (!i || !has_same_digest(", "if (!i || has_same_digest("),
   new_entries_are_not_found=("clv_code clv_ledger_find(", "if (!line) line = find_line_between(l, l->n_old, l->n, &wanted_line);", ""),
   new_entries_are_added_again=("static bool has_line_for_identity(", "|| has_line_between(l, l->n_old, l->n, wanted_line, identity)", ""),
   pieces_stay_apart=("static clv_code sort_new_entries(", "CLV_TRY(merge_entries(l, l->n_old, first, err));", ""),
   the_later_of_equal_entries_comes_first=("static clv_code merge_entries(", "&later[n_later - 1]) > 0;", "&later[n_later - 1]) < 0;"))
of("master/plan/known_layers.c", KNOWN,
   rows_that_a_worker_had_are_secret=("static clv_code look_up_sample(", "return look_up_sample_rows(r, k, s, err);", "return CLV_OK;"),
   rows_that_a_worker_begins_with_are_secret=("static clv_code look_up_sample(", "CLV_TRY(add_worker_rows(r, s, err));", ""))
of("master/egress/ledger_names.c", KNOWN,
   rows_at_a_worker_are_not_noted=("clv_code clv_ledger_list_add_sample(", "k < row_hashes.n", "k < 0 * row_hashes.n"))
of("master/egress/plain_values.c", KNOWN,
   transforms_that_anybody_knows_are_secret=("const char *clv_plain_values_reason(", "clv_public_row_test_is_public(p->row_test) ? PUBLIC_REASON : NULL", "NULL"))
FRONTS = "tests/net/api/test_api_fronts.py"
of("master/api/extra/fronts.c", FRONTS,
   weights_of_programs_are_not_noted=("static clv_code note_sent_module(", "CLV_TRY(add_tensor_sample(&l, identity, &w.tensor, err));", ""),
   keys_of_programs_are_not_noted=("static clv_code note_sent_module(", "CLV_TRY(clv_ledger_list_add(&l, identity, CLV_LEDGER_KEY, &of, err));", ""),
   weights_that_programs_read_are_not_noted=("cleave_status api_fronts_note_values(", "if (v->are_read_values && !should_note_reading(f, v->runtime))", "if (v->are_read_values)"),
   given_weights_are_secret=("static clv_code add_given_values_reason(", "if (!is_secret)", "if (!j)"),
   gradients_of_programs_are_not_compared=("static cleave_status compare_gradient(", "if (r != v &&", "if (!f &&"),
   frozen_heads_of_programs_hide_labels=("static clv_code find_layer_kind(", "if (!reason.len && j->is_for_label_gradient && !is_learning_layer(m, k))", "if (!j)"),
   programs_hide_behind_any_layer=("static clv_code find_layer_kind(", "*ret = CLV_WEIGHTS_KNOWN;", ""),
   rows_with_a_front_say_what_they_like=("cleave_status api_fronts_fill_row(", "if (missing_findings ||", "if ("))
of("master/egress/program_gate.c", FRONTS,
   rows_of_values_say_what_they_like=("cleave_status clv_program_gate_compare_findings(", "!(measured_findings & ~r->findings)", "measured_findings + 1"),
   layers_that_hide_are_not_counted=("cleave_status clv_program_gate_compare_findings(", "is_covered && r->declaration.hiding_layers <= n_hiding_layers", "is_covered"))
of("master/egress/row_digests.c", "tests/unit/egress/test_rows",
   a_factor_makes_another_row=("static clv_code compute_line_digest(", "/ sqrt(l->squares_sum)", ""),
   a_sign_makes_another_row=("static clv_code compute_line_digest(", "(int32_t)(fabs(l->sums[k])", "(int32_t)((l->sums[k])"),
   rows_of_one_value_have_digests=("static clv_code compute_line_digest(", "l->n >= MIN_NONZERO_VALUES && l->squares_sum * l->squares_sum >= MIN_EFFECTIVE_VALUES * l->fourth_powers_sum", "l->n > 0"),
   columns_have_no_digests=("static void add_row_part(", "at < end && at < columns->n", "at < end && at < 0 * columns->n"),
   short_rows_need_no_others=("static clv_code compute_line_digest(", "l->n >= MIN_LONG_LINE_VALUES", "l->n > 0"))
of("master/egress/public_rows.c", "tests/unit/egress/test_rows",
   waves_are_secret=("", "if (is_wave(from, length, tolerance)) return 3;", ""),
   products_are_secret=("static size_t count_free_numbers_of_outer_product(", "width <= n / 2", "width < 2"),
   orthogonal_signs_are_secret=("static bool are_sign_rows_orthogonal(", "t->n_sign_rows == MIN_SIGN_ROWS", "t->n_sign_rows > MIN_SIGN_ROWS"),
   ratios_are_secret=("", "if (is_geometric(from, length, tolerance)) return 2;", ""),
   neighbours_alone_make_a_wave=("static bool is_wave(", "n / 4, n / 3}", "1, 1}"),
   transforms_with_factors_of_columns_are_secret=("bool clv_public_row_test_is_public(", "c->n_long_simple >= MIN_SIMPLE_ROWS", "c->n_long_simple > t->n_columns"),
   rows_of_three_values_are_public=("void clv_public_row_test_add(", "|| t->n_columns < MIN_ROW_VALUES", ""))
of("master/egress/ledger.c", "tests/unit/egress/test_ledger",
   each_row_has_a_line=("static clv_code put_items(", "item->kind == CLV_LEDGER_ROW && items[*i].kind == CLV_LEDGER_ROW", "item->kind > CLV_LEDGER_ROW"),
   a_line_has_one_row=("static clv_code parse_digests(", "l->n == first_index ||", "l->n == first_index &&"),
   rows_are_never_too_many=("static bool is_in_compacted_file(", "return !shift ||", "return shift ||"))
