# SPDX-License-Identifier: Apache-2.0
"""Deliberate breaks, see breaks.py: the records of a run, and the messages to a resumed run."""
from breaks import of

SPLIT, RESUMED = "tests/unit/data/test_split", "tests/net/operations/test_resumed_data.py"
of("master/data/split.c", SPLIT,
   rare_classes_are_not_held_back=("static size_t draw_one_of_each_class(", "s->list[i].n_drawn = 1; n_to_draw--;", ""),
   a_class_may_be_emptied=("clv_code clv_subset_split(", ".min_undrawn = 1", ".min_undrawn = 0"),
   groups_are_torn=("static clv_code draw_records(", "bool by_group = d->kind == CLV_SPLIT_GROUPS;", "bool by_group = false;"),
   a_fraction_may_be_none=("clv_code clv_subset_split(", "if (fraction > 0 && !d.n_to_draw) d.n_to_draw = 1;", ""))
of("master/data/keep_records.c", SPLIT, labels_stay_where_they_were=("clv_code clv_dataset_keep_records(", "keep_tensor_rows(ds->labels, kept_records);", ""))
of("master/run/run_data.c", RESUMED,
   other_data_go_on=("static clv_code compare_digests(clv_run", "if (!n || r->o->accept_data)", "if (n < 99)"),
   touched_images_are_others=("static clv_code compute_part_digest(", "if (!is_labels && has_same_files)", "if (!is_labels && !has_same_files && earlier_part)"),
   other_tokenizers_are_not_noticed=("static clv_code compute_file_digests(", "i < CLV_COUNT(model_files)", "i < 1"),
   predict_takes_any_tokenizer=("clv_code clv_run_compare_files(", "if (r->has_other_data && !r->o->accept_data)", "if (false)"),
   old_runs_choose_anew=("static clv_code check_chooses_old_records(", "(!has_other_split && !has_other_limit) ||", "true ||"))
of("master/run/run_data.c", "tests/net/training/test_hf.py",
   exports_take_any_config=("clv_code clv_run_compare_model_config(", "if (!accepts_change)", "if (false)"))
of("master/plan/run_data.c", "tests/unit/plan/test_data_fits",
   half_of_the_labels_are_most=("static void note_label_shift(", "m.n_same_position > m.n_comparable - m.n_same_position", "m.n_same_position >= m.n_comparable - m.n_same_position"),
   no_label_of_its_own_place_is_noted=("static void note_label_shift(", "m.n_same_position > m.n_comparable - m.n_same_position", "false"))
of("master/run/run_open.c", "tests/net/operations/test_runs.py killed_fresh_run_leaves_the_earlier_run",
   a_key_is_read_before_its_run_is_taken=("static clv_code lock_resumed_run(", "r->o->resume && has_folder ?", "r->o->fresh && has_folder ?"))
of("master/run/run_open.c", "tests/unit/run/test_train",
   a_rewound_run_begins_its_order_anew=("static clv_code open_loader(", ".start = l->cursor", ".start = {0}"),
   a_rewound_run_keeps_its_counters=("static clv_code find_start_position(", "r->steps = (clv_run_steps){", "(void)(clv_run_steps){"),
   later_lines_stay_in_the_records=("static clv_code open_reporter(", ".last_kept_step = step", ".last_kept_step = step + 99"))
of("common/model/weights/checkpoint_read.c", "tests/unit/weights/test_checkpoint",
   unfinished_checkpoints_are_listed=("size_t clv_checkpoint_steps_with_manifest(", "if (has_manifest_file(run_dir, l.steps[i]))", ""),
   kept_files_are_opened_at_home=("static clv_code open_listed_file(", "if (f->keeper_identity)", "if (f->keeper_identity && f->bytes == 99)"),
   kept_files_of_pruned_checkpoints_stay=("clv_code clv_checkpoint_prune(", "drop_files_at_workers(run_dir, l.steps[i], drop, user);", ""))
of("common/model/weights/manifest.c", "tests/unit/weights/test_checkpoint",
   any_file_may_be_at_a_worker=("static clv_code parse_kept_place(", "if (!is_stage_file(ret->name))", "if (false)"),
   a_kept_file_has_two_rows=("static clv_code parse_files(", "return check_kept_names(m, label, err);", "return CLV_OK;"))
RECOVERY = "tests/net/operations/test_recovery.py"
of("master/run/run_recover.c", RECOVERY,
   losses_in_a_row_are_not_counted=("static clv_code count_lost_worker(", "c->n_losses_since_checkpoint = c->checkpoint_step_at_last_loss == newest_step ? c->n_losses_since_checkpoint + 1 : 1;", "c->n_losses_since_checkpoint = 1;"),
   a_recovery_has_the_epoch_of_before=("static clv_code open_session(", "CLV_TRY(clv_run_lock_raise_epoch(r->lock, err));", ""),
   a_recovered_run_begins_anew=("static clv_code open_session(", "r->is_resumed = clv_checkpoint_has_manifest(r->dir.data);", "r->is_resumed = false;"))
of("master/run/run_recover.c", "tests/net/operations/test_approval.py",
   a_recovery_asks_no_policy=("static clv_code count_lost_worker(", "if (check_policy_permits_resume(r, &reason) != CLV_OK) {", "if (false) {"))
of("master/run/run_save.c", "tests/unit/run/test_best",
   a_checkpoint_may_take_all_the_time=("uint64_t clv_checkpoint_interval_ns(", "CLV_MAX(interval_ns, MIN_CHECKPOINT_INTERVAL_NS)", "MIN_CHECKPOINT_INTERVAL_NS"),
   a_slow_first_round_is_usual=("void clv_checkpoint_note_round(", "if (s->n_rounds++ < N_SLOW_FIRST_ROUNDS) return;", "s->n_rounds++;"))
of("master/run/run_stop_early.c", "tests/unit/run/test_best",
   any_gain_is_an_improvement=("static bool is_improvement(", "gain > c->early_stopping.min_delta", "gain > 0"),
   what_is_not_finite_improves=("static bool is_improvement(", "if (!isfinite(value)) return false;", ""),
   the_count_of_another_score_goes_on=("void clv_early_stopping_count_validation(", "if (!has_same_score(s, c)) *s = (clv_early_stopping_state){.score = score};", "s->score = score;"))
of("master/run/run_save.c", "tests/unit/run/test_train",
   early_stopping_counts_from_0_when_resumed=("static clv_train_position current_position(", ".early_stopping_state = r->steps.early_stopping_state", ".early_stopping_state = {0}"))
of("master/run/run_train.c", "tests/unit/run/test_train",
   nothing_stops_early=("clv_code clv_run_loop(", "!clv_early_stopping_is_due(&r->steps.early_stopping_state, &r->config->train)", "true"))
of("master/train/save.c", "tests/unit/run/test_best",
   counts_with_other_text_are_taken=("bool clv_early_stopping_parse(", "|| strcmp(text, rewritten_text) != 0", ""))
of("common/model/config/session_choices.c", "tests/unit/config/test_errors",
   a_score_that_no_evaluation_has_chooses=("static clv_code check_choice(", "return check_score_is_listed(c, k, scores, err);", "return scores ? CLV_OK : CLV_INVALID;"))
POINTS, RANKED, SWEEP = "tests/unit/sweep/test_points", "tests/unit/sweep/test_scores", "tests/net/training/test_sweep.py"
of("master/sweep/points.c", POINTS,
   values_in_brackets_are_divided=("static size_t find_value_len(", "else if (text[i] == ',' && !depth)", "else if (text[i] == ',')"),
   a_point_may_come_twice=("static clv_code draw_point(", "if (!equals_earlier_point(p, point_index)) return CLV_OK;", "return CLV_OK;"),
   points_are_of_no_seed=("static clv_code draw_value(", ".seed = o->seed", ".seed = 7"),
   folds_are_not_counted_as_runs=("static clv_code alloc_points(", "if (n * CLV_MAX(o->folds, UINT64_C(1)) > SWEEP_MAX_RUNS)", "if (n > SWEEP_MAX_RUNS)"),
   seeds_may_be_swept=("static clv_code check_key(", "strcmp(refused_keys[i].name, name) == 0", "strcmp(refused_keys[i].name, name) == 0 && i != 3"))
of("master/sweep/point_range.c", POINTS,
   factors_have_no_equal_chances=("void sweep_range_append_value(", "r->is_logarithmic ?", "r->is_logarithmic && r->has_integer_ends ?"))
of("master/sweep/scores.c", RANKED,
   tests_count_as_validations=("static void count_validation(", "!v->is_validation ||", ""),
   the_best_validation_is_the_last=("static void count_validation(", "!isfinite(v->value) || !is_better", "!isfinite(v->value)"))
of("master/sweep/table.c", RANKED,
   failed_runs_are_ranked=("static void compute_mean(", "runs[i].state != SWEEP_RUN_FINISHED ||", ""),
   the_worst_is_first=("static void make_sorted_rows(", "is_largest_best ? -row->value", "is_largest_best ? row->value"),
   quotes_stay_as_they_are_in_csv=("static void append_csv_cell(", "*text == '\"' ?", "*text == '\\n' ?"))
of("master/sweep/sweep.c", SWEEP + " finished_runs_are_ranked_and_not_run_again",
   finished_runs_run_again=("static clv_code read_finished_runs(", "if (!state.is_finished) continue;", "continue;"),
   other_points_are_mixed_in=("static clv_code write_or_compare_points(", "if (n_equal_bytes < stored_text.len) return fail_changed_points(path.data, line_number, err);", ""))
of("master/sweep/child_runs.c", SWEEP + " killed_sweep_continues_with_the_same_bits",
   children_outlive_a_killed_sweep=("static _Noreturn void exec_run(", "prctl(PR_SET_PDEATHSIG, SIGKILL);", ""))
of("master/sweep/child_runs.c", SWEEP + " run_that_waits_for_its_worker_says_so",
   the_output_of_runs_is_not_passed_on=("static void report_progress(", "if (line[0])", "if (!line[0])"))
of("master/sweep/child_runs.c", SWEEP + " interrupted_sweep_ends_its_runs_after_a_checkpoint",
   interrupted_runs_are_killed=("clv_code sweep_run_all(", "stop_all_runs(s, SIGINT);", "stop_all_runs(s, SIGKILL);"))
of("master/sweep/runs.c", SWEEP + " policy_counts_the_bytes_of_all_runs",
   each_run_has_the_policys_bytes=("clv_exit_code sweep_prepare_runs(", "if (check_policy_bytes(ret, &err) != CLV_OK)", "if (false)"))
of("master/sweep/runs.c", SWEEP + " wrong_values_are_refused_before_the_first_run",
   only_the_first_point_is_checked=("clv_exit_code sweep_prepare_runs(", "i < ret->n_runs", "i < 1"))
of("common/model/config/session_choices.c", SWEEP + " folds_are_runs_whose_mean_counts",
   folds_have_no_best_checkpoint=("static clv_code check_choice(", "!clv_data_has_validation(&c->data)", "!(c->data.validation_fraction > 0)"))
of("master/run/run_rewind.c", "tests/unit/run/test_train",
   later_checkpoints_stay_when_a_run_goes_back=("static clv_code remove_later_checkpoints(", "CLV_TRY(clv_checkpoint_abandon(r->dir.data, all.list[i].step, err));", ""),
   later_sealed_copies_stay_when_a_run_goes_back=("static clv_code remove_later_checkpoints(", "CLV_TRY(clv_run_escrow_remove_later(r->config, step, err));", ""),
   a_named_checkpoint_is_the_newest=("clv_code clv_run_load_start_checkpoint(", "if (clv_run_has_named_checkpoint(r))", "if (false)"))
of("master/run/run_begin.c", "tests/unit/run/test_train",
   a_checkpoint_that_is_not_there_begins_the_run=("clv_code clv_run_find_start(", "CLV_TRY(clv_run_check_named_checkpoint(r, err));", ""))
of("master/data/sampling.c", "tests/unit/data/test_batches",
   each_record_is_drawn_equally_often=("static clv_code set_chances_by_class_count(", "chances[i] = 1.0 / (double)n;", "chances[i] = (double)(n > 0);"),
   each_epoch_draws_the_same=("void clv_sampling_draw(", ".step = epoch", ".step = 0 * epoch"),
   weights_are_those_of_the_first_class=("static clv_code set_chances_by_class(", "chances[i] = weights[class];", "chances[i] = weights[0];"))
of("master/plan/label_order.c", SWEEP + " plan_says_that_sampling_shows_rare_classes",
   sampling_shows_no_labels=("void clv_sampling_describe(", "clv_data_samples(&b->config->data) && sends_records(b)", "false && sends_records(b)"))
of("master/run/run_open.c", "tests/unit/run/test_train",
   a_resumed_run_samples_no_more=("static clv_code open_loader(", ".sampling_sums = r->sampling_sums,", ".sampling_sums = r->is_resumed ? NULL : r->sampling_sums,"))
of("common/model/config/session_split.c", "tests/unit/config/test_errors",
   sampling_goes_with_what_contradicts_it=("static clv_code check_sampling(", "if (others[i].contradicts)", "if (others[i].contradicts && i > 4)"))
DROPS = "tests/net/training/test_habits.py dropout_samples_have_a_mean_and_an_interval"
of("master/train/eval.c", DROPS,
   passes_draw_the_same_numbers=("static cleave_context_options make_context_options(", "(pass - 1) * e->rows->n + e->n_sent", "0 * e->n_sent"),
   samples_have_no_dropout=("static cleave_context_options make_context_options(", ".evaluation = !pass", ".evaluation = true"))
of("master/run/run_dropout.c", DROPS,
   intervals_are_half_of_the_values=("", "#define HIGH_QUANTILE 0.975", "#define HIGH_QUANTILE 0.03"),
   models_without_dropout_are_sampled=("clv_code clv_run_check_dropout(", "return has_any_dropout ? CLV_OK", "return g ? CLV_OK"))
SCORES = "tests/unit/score/test_score"
of("master/score/ranks.c", SCORES,
   equal_probabilities_are_ordered=("static size_t find_tie_end(", "compare_log_p(log_p, get_log_p(k, order[at])) == 0", "ret->n == 0"),
   precision_is_that_of_the_end=("static void lower_threshold(", "v->true_positives / (v->true_positives + v->false_positives)", "v->n_with_label / (v->n_with_label + v->n_without_label)"),
   any_specificity_will_do=("static void lower_threshold(", "if ((v->n_without_label - v->false_positives) / v->n_without_label >= specificity)", ""))
of("master/score/values.c", SCORES,
   errors_of_bins_cancel=("static void compute_ece(", "fabs((double)r->bins[b].n_right - r->bins[b].p_sum)", "((double)r->bins[b].n_right - r->bins[b].p_sum)"),
   columns_are_averaged_before_the_root=("static void compute_number_values(", "rmse_sum += sqrt(m.square_error_sum / m.n);", "rmse_sum += m.square_error_sum / m.n;"),
   all_labels_right_is_some_right=("static uint64_t count_sample(", "s->label_bits ? n_right == n_classes", "s->label_bits ? n_right > 0"))
of("master/score/intervals.c", SCORES,
   a_sample_is_of_half_the_records=("static void draw_sample(", "b->n_draws[(uint64_t)random_words[i % 4] * s->n_records >> 32]++;", "if (i % 4 == 0) b->n_draws[(uint64_t)random_words[i % 4] * s->n_records >> 32]++;"),
   an_interval_is_of_half_the_samples=("", "LOW_SHARE = 0.025, HIGH_SHARE = 0.975", "LOW_SHARE = 0.25, HIGH_SHARE = 0.75"))
of("master/score/score.c", SCORES,
   the_last_records_are_the_worst=("static void insert_worst_record(", "s->worst_records[at - 1].loss < loss", "at == CLV_SCORE_MAX_WORST_RECORDS"),
   rates_are_logarithms=("static double add_number_targets(", "s->o.outputs == CLV_SCORE_LOG_NUMBERS", "false"))
of("common/model/config/session_choices.c", "tests/unit/config/test_errors",
   any_score_goes_with_any_loss=("static clv_code check_scores(", "if (clv_score_tasks(score_of(scores->items[i])) & task) continue;", "continue;"))
of("master/run/run_predictions.c", "tests/unit/run/test_records",
   others_may_read_predictions=("static clv_code write_lines(", "O_TRUNC | O_CLOEXEC, 0600", "O_TRUNC | O_CLOEXEC, 0644"),
   large_outputs_have_no_probability=("static void apply_softmax_to_row(", "max_output = fmax(max_output, (double)x[k])", "max_output = 0"))
PAGE = "tests/unit/page/test_page"
of("master/page/html.c", PAGE,
   a_page_has_the_tags_of_a_run=("static const char *html_entity(", "return \"&lt;\";", "return NULL;"),
   text_may_turn_around=("static bool can_alter_display(", "(c >= 0x2028 && c <= 0x202e)", "c == 0x2028"))
of("master/page/page.c", PAGE,
   a_page_may_load_anything=("static clv_code put_head(", "default-src 'none'; ", ""),
   intervals_are_not_shown=("static void put_value_cell(", "if (i && !isnan(i->low))", "if (false)"))
of("master/page/series.c", PAGE,
   each_point_of_a_curve_is_drawn=("void page_series_add(", "|| s->n_added++ % s->stride", ""))
of("master/page/run_files.c", PAGE,
   a_line_that_is_being_written_is_read=("static clv_code read_lines(", "if (line[n - 1] != '\\n') break;", ""))
of("master/page/score_lines.c", PAGE,
   a_test_is_a_validation=("clv_code page_read_evaluation(", "strcmp(l.event, \"validation\") == 0", "l.event[0] != 'e'"))
KEPT = "tests/net/operations/test_kept_checkpoints.py"
of("master/train/save.c", KEPT,
   kept_files_are_not_removed=("clv_code clv_trainer_prune_checkpoints(", "remove_kept_files, t, err);", "NULL, NULL, err);"),
   kept_stages_are_fetched=("static bool is_kept_at_worker(", "!t->is_stage_fetched[stage];", "!t->is_stage_fetched[stage] && stage > 99;"))
of("master/watch/doctor.c", KEPT + " quota_below_what_checkpoints_need_is_found_before_the_run",
   any_quota_is_in_order=("static void check_state_quota(", "l.quota_bytes >= needed_bytes", "l.quota_bytes > 0"))
of("common/base/file.c", "tests/unit/weights/test_checkpoint",
   a_manifest_gets_its_name_unchecked=("clv_code clv_file_write_checked(", "if (code == CLV_OK && check)", "if (code == CLV_OK && check && !user)"))
of("master/train/state.c", KEPT,
   a_lost_file_ends_the_run=("clv_code clv_trainer_restore(", "if (code == CLV_OK || !is_lost) return code;", "return code;"))
of("master/run/run_home.c", KEPT,
   leftovers_are_removed_at_the_end_alone=("void clv_run_remove_unneeded_files(", "if (clv_session_checkpoint_home", "if (r || clv_session_checkpoint_home"),
   an_interrupted_run_leaves_its_files=("void clv_run_gather_at_end(", "clv_interrupt_handled(); /* from here on, a second signal ends the process at once */", ""))
of("master/run/run_recover.c", KEPT + " killed_workers_load_what_they_kept",
   a_recovery_leaves_the_files_of_its_attempt=("clv_code clv_run_recover(", "clv_run_remove_unneeded_files(r);", ""))
of("master/run/run_save.c", KEPT + " master_that_lost_its_run_while_workers_wrote_commits_nothing",
   a_master_that_lost_its_run_goes_on_writing=("static clv_code check_newest_attempt(", "return clv_run_lock_check_newest(r->lock, err);", "return r ? CLV_OK : clv_run_lock_check_newest(NULL, err);"))
of("master/history/run_lock.c", RECOVERY,
   a_recovered_attempt_says_what_it_lost=("void clv_run_lock_note_recovery(", "a->text[0] = '\\0';", ""))
of("master/history/run_lock.c", RECOVERY + " master_whose_run_was_taken_over_writes_nothing_more",
   two_masters_of_one_epoch_go_on=("static bool is_same_attempt(", "x->pid == y->pid", "x->pid"))
of("master/run/run_train.c", RECOVERY + " run_that_was_killed_behind_its_last_checkpoint_is_pruned",
   a_killed_attempt_leaves_old_checkpoints=("static clv_code prune_checkpoints_of_killed_attempt(", "if (!r->is_resumed || r->steps.n_steps_done != r->steps.restored_step) return CLV_OK;", "if (r) return CLV_OK;"))
DISKS = "tests/net/operations/test_disks.py"
of("master/run/run_save.c", DISKS,
   a_checkpoint_that_the_disk_refuses_ends_the_run=("static clv_code skip_checkpoint_if_disk_failed(", "if (code != CLV_PRECONDITION) return code;", "if (code != CLV_OK) return code;"),
   lines_of_steps_are_not_synced=("static clv_code begin_checkpoint(", "CLV_TRY(clv_reporter_sync(r->reporter, err));", ""))
of("master/report/progress.c", DISKS + " lines_that_the_disk_refuses_wait_in_memory",
   a_line_that_the_disk_refuses_ends_the_run=("static clv_code flush_line_file(", "if (write_pending(r, t, err) == CLV_OK) return CLV_OK;", "if (f) return write_pending(r, t, err);"))
of("common/model/weights/write.c", DISKS + " power_cut_of_a_worker_leaves_each_committed_checkpoint",
   a_published_file_is_not_synced_into_its_folder=("clv_code clv_weights_writer_publish(", "CLV_TRY(sync_parent(w->path, err));", "if (!ret_bytes) CLV_TRY(sync_parent(w->path, err));"))
of("common/base/file.c", DISKS + " power_cut_leaves_each_committed_checkpoint",
   a_new_folder_is_not_synced=("static clv_code make_folder(", "if (mkdir(path, 0755) == 0) return clv_file_sync_folder(path, err);", "if (mkdir(path, 0755) == 0) return CLV_OK;"))
of("master/watch/metrics.c", RECOVERY,
   a_recovered_run_recovers_on=("void clv_run_metrics_note_recovery(", "m->numbers.recovering_gauge = 0;", ""))
of("master/run/run_begin.c", RESUMED, shrunk_data_finish_a_run=("static clv_code check_steps_left(", "step < n_session_steps", "true"))
of("master/run/run_changes.c", RESUMED,
   keys_that_came_are_not_told=("static void compare_key_lines(", "if (adds_missing_only && !second_value)", "if (false)"),
   another_length_is_not_told=("static void compare_total_steps(", "if (n_old_steps == n_new_steps)", "if (n_old_steps)"),
   an_optimiser_without_state_is_taken=("static clv_code check_optimizer(", "if (moment_index < 0)", "if (moment_index < 99)"))
of("master/history/run_lock.c", RESUMED,
   a_test_is_the_best_of_validations=("void clv_run_lock_note_evaluation(", "is_other_set ? strcmp(e->evaluated_set, \"validation\") == 0 : is_better(e, best)", "true"))
of("master/report/progress.c", RESUMED,
   a_loss_that_is_not_finite_spoils_the_mean=("static void add_to_interval(", "if (isfinite(p->loss))", "if (p)"))
of("master/data/npy.c", "tests/unit/data/test_readers",
   fortran_order_is_c_order=("static clv_code parse_order(", 'h->array_header.is_fortran = take_word(h, "True");', 'h->array_header.is_fortran = take_word(h, "True") && false;'))
of("master/data/png.c", "tests/unit/data/test_images",
   texts_of_png_are_inflated=("static clv_code create_decoder(", "png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);", ";"))
of("master/data/record_lines.c", "tests/unit/data/test_texts",
   a_record_has_no_limit=("static clv_code append_bytes(", "l->record.len + n > CLV_TEXT_RECORD_MAX", "l->record.len + n > (size_t)CLV_TEXT_RECORD_MAX * 64"),
   empty_lines_are_records=("clv_code clv_record_lines_next(", "CLV_TRY(skip_empty_lines(l, err));", ""),
   ends_of_cr_are_one_line=("static clv_code check_line_ends(", "if (!ends_in_cr(l))", "if (l)"))
of("master/data/images.c", "tests/net/operations/test_checks.py",
   the_first_size_is_that_of_records=("static void choose_record_size(", "if (n_equal <= n_most_equal)", "if (n_most_equal)"))
of("master/data/token_rows.c", "tests/unit/data/test_texts",
   a_long_text_loses_its_end_token=("clv_code clv_text_rows_add(", "n = CLV_MIN(n, clv_text_rows_capacity(r));", "n = CLV_MIN(n, r->width - 1); if (n == r->width - 1) r->last = -1;"))
of("master/data/csv.c", "tests/unit/data/test_texts",
   two_quotes_end_a_field=("static clv_code read_quoted_field(", "if (c->at == c->len || c->text[c->at] != '\"') break;", "break;"))
of("master/data/format_text.c", "tests/net/training/test_text.py",
   texts_go_to_any_layer=("static clv_code open_texts(", "(!o->holds_tokens && !o->n_named_inputs) ||", ""))
of("master/data/inputs.c", "tests/unit/data/test_inputs",
   inputs_have_each_their_count=("clv_code clv_inputs_add(", "ds->n_named_inputs && t->shape.dim[0] != ds->named_inputs[0].data->shape.dim[0]", "false"),
   a_row_is_that_of_the_batch=("void clv_inputs_fill(", "size_t from = record * in->elements_per_record,", "size_t from = (record ? i : record) * in->elements_per_record,"))
of("master/data/format_arrays.c", "tests/unit/data/test_inputs",
   labels_below_zero_are_all_ignored=("static clv_code check_class_label(", "v == (o->ignored_label ? *o->ignored_label : CLV_LABEL_IGNORED) && ds", "v < 0 && ds"))
of("common/model/config/session.c", "tests/unit/config/test_errors",
   keys_of_other_formats_do_nothing=("static clv_code check_data(", "CLV_TRY(check_inapplicable_sections(c, err));", ""))
of("common/base/http/http.c", "tests/unit/http/test_http",
   the_page_servers_library_is_not_loaded=("static clv_code start_daemon(", "CLV_TRY(load_library(err));", ""))
RECUT = "tests/net/training/test_recut.py "
of("master/train/resplit.c", RECUT + "unequal_counts_of_steps_are_not_merged",
   unequal_counts_of_steps_are_merged=("static clv_code find_step_count(", "if (first && step != *ret)", "if (false)"))
of("master/train/resplit.c", RECUT + "tensors_that_do_not_fit_are_refused_by_name",
   moments_that_no_stage_takes_are_dropped=("static clv_code check_all_used(", "if (!is_used[i])", "if (false)"))
of("master/train/resplit.c", RECUT + "fixed_weights_of_an_artifact_are_found_at_the_new_place",
   artifacts_replace_weights_of_the_checkpoint=("static clv_code check_artifact(", "if (replaced.n)", "if (false)"),
   any_artifact_stands_for_the_one_before=("static clv_code check_artifact(", "if (!left_out.n || has_same_source(r, spec))", "if (r)"))
of("master/plan/moved_layers.c", RECUT + "layer_moves_to_a_worker_only_where_the_session_releases_it",
   layers_leave_the_master_without_a_word=("clv_code clv_moved_layers_check(", "return first ? fail_layers_need_release(b, first, names.data, n, err) : CLV_OK;", "return CLV_OK;"),
   released_layers_need_no_such_name=("clv_code clv_release_check(", "if (k == b->full_graph->n_nodes)", "if (false)"))
of("master/plan/checkpoint_cut.c", RECUT + "files_that_stayed_at_workers_are_gathered_first",
   kept_files_are_not_gathered_first=("clv_code clv_blueprint_check_kept_files(", "if (!f || !f->keeper_identity) continue;", "continue;"))
of("master/plan/checkpoint_cut.c", RECUT + "another_cut_changes_no_bit",
   a_layer_of_another_stage_is_of_this_one=("static bool is_at_same_stage(", "return checkpoint_stage == i;", "return checkpoint_stage <= i || checkpoint_stage > i;"))
of("master/run/run_changes.c", RECUT + "cut_before_and_after_is_printed_and_recorded",
   another_cut_is_not_told=("static clv_code compare_keys(", "add_cut_change(r, &old_cut, &new_cut);", ""))
of("master/egress/policy.c", "tests/unit/egress/test_egress_policy",
   a_policy_releases_any_layer=("clv_code clv_policy_check_release(", "if (!c) return CLV_OK;", "if (layer) return CLV_OK;"))
of("common/model/weights/checkpoint_tensors.c", "tests/unit/weights/test_checkpoint",
   a_tensor_may_be_in_two_files=("static clv_code check_names_differ(", "i < t->n", "i < 0"))
SEAL = "tests/unit/seal/test_seal"
of("master/seal/cipher.c", SEAL,
   frames_have_no_place=("static bool set_nonce_and_aad(", "c->frame_index++;", ""),
   the_last_frame_is_as_others=("static bool set_nonce_and_aad(", "nonce[11] = is_last;", ""),
   a_sealed_file_has_any_name=("static bool set_nonce_and_aad(", "(int)strlen(c->name)", "0"))
of("master/seal/key.c", SEAL,
   others_may_read_a_key=("static clv_code check_only_owner_has_access(", "if (!(st.st_mode & 077)) return CLV_OK;", "if (st.st_mode) return CLV_OK;"))
of("master/seal/sealed_read.c", SEAL,
   another_key_is_not_said=("static clv_code check_key_id(", "if (strcmp(id, key->id) == 0)", "if (id[0])"))
CHECKPOINTS, COPIES = "tests/net/operations/test_checkpoints.py", "tests/unit/checkpoints/test_checkpoints"
of("master/checkpoints/gather.c", CHECKPOINTS + " gathered_files_are_those_that_were_kept",
   a_damaged_part_is_not_fetched_again=("static clv_code fetch_file(", "if (code == CLV_DATA_LOSS && continues_earlier_fetch)", "if (false)"))
of("master/checkpoints/stores.c", CHECKPOINTS + " every_file_is_verified_wherever_it_is",
   what_is_read_has_any_digest=("static clv_code compare_digest(", "clv_code code = clv_checkpoints_compare_digest(&found_digest, r->file, err);", "clv_code code = CLV_OK;"))
of("master/checkpoints/orphans.c", COPIES,
   files_of_checkpoints_are_swept=("static bool remove_orphan_file(", "if (is_listed(needed_files, o->kept_file_name, o->keeper_identity)) return false;", "(void)needed_files;"))
of("master/checkpoints/orphans.c", CHECKPOINTS + " newest_checkpoint_is_deleted_by_force_alone",
   an_abandoned_checkpoint_has_no_orphans=("clv_code clv_checkpoint_abandon(", "CLV_TRY(clv_orphans_add_manifest_files(run_dir, &m, err));", ";"))
of("master/checkpoints/escrow.c", COPIES,
   copies_of_runs_can_be_exchanged=("static void make_bound_name(", "c->at->id", '"run"'))
of("master/run/run_gather.c", CHECKPOINTS + " newest_checkpoint_is_deleted_by_force_alone",
   the_newest_is_deleted_as_others=("static clv_code remove_checkpoint(", "if (k->is_newest && !c->o->force)", "if (false)"))
of("master/checkpoints/escrow_thread.c", CHECKPOINTS + " lost_and_wrong_keys_are_named",
   a_sealed_copy_is_not_counted=("static void seal_newest(", "count_completed_copy(e, step, bytes);", ";"))
of("master/run/run_escrow.c", CHECKPOINTS + " lost_and_wrong_keys_are_named",
   status_has_no_sealed_copies=("bool clv_run_read_escrow_status(", "if (!has_escrow(config)) return false;", "if (config) return false;"))
of("master/run/run_escrow.c", CHECKPOINTS + " lost_and_wrong_keys_are_named",
   a_lost_key_is_made_again=("static clv_code create_escrow_key(", "if (clv_escrow_key_id(location, id, NULL) == CLV_OK)", "if (false)"))

# ---- the Python package --------------------------------------------------------------------------
of("deploy/python/src/cleave/_lib.py", "tests/python/test_runtime.py interrupt_ends_open_close_and_waits",
   open_is_waited_for_in_one_piece=("", 'threading.Thread(target=work, name="cleave-call", daemon=True).start()', "work()"))
of("deploy/python/shim.c", "tests/python/test_runtime.py killed_worker_raises_within_a_second",
   a_killed_worker_is_looked_for=("cleave_status shim_open(", ".refused_ms = REFUSED_MS", ".refused_ms = 0"))
of("deploy/python/src/cleave/_runtime.py", "tests/python/test_runtime.py forked_child_is_refused_in_words_and_harms_nobody",
   a_forked_child_uses_the_links_of_its_parent=("", "runtime._is_forked = True", "runtime._is_forked = False"))
of("deploy/python/src/cleave/_session.py", "tests/python/test_session.py exit_codes_are_exceptions",
   a_wrong_file_is_any_error=("", "3: Code.INVALID, 4", "3: Code.UNKNOWN, 4"))

# ---- modules of PyTorch that become layers, and back ---------------------------------------------
EXPORT = "tests/net/training/test_export.py"
of("deploy/export_traced.py", EXPORT, the_first_refusal_alone_is_printed=("", 'return "\\n".join(lines)', "return lines[0]"))
of("deploy/export_torch.py", EXPORT, a_state_has_no_versions=("", 'made._metadata = getattr(tensors, "_metadata", OrderedDict())', "pass"))
TRACED = "tests/net/training/test_traced.py traced_export_matches_the_golden_file"
of("deploy/export_joined.py", TRACED,
   frames_have_no_rows_between_them=("", "v = padded(t, v, 2, 0, max(0, reach - step), \"constant\")", "v = padded(t, v, 2, 0, 0, \"constant\")"),
   rows_over_two_frames_stay=("", "t.cut(v, 3, 0, out)", "t.cut(v, 3, 0, pitch // step)"))
of("deploy/export_rules.py", TRACED,
   hidden_keys_are_lowered_a_little=("", "LOWEST = -1e30", "LOWEST = -1.0"),
   a_comparison_of_ids_is_the_other_way_round=("", 'getattr(operator, name)(torch.arange(rows), number).float()', 'getattr(operator, name)(number + 0 * torch.arange(rows), number).float()'))
of("deploy/export_rules.py", "tests/net/training/test_export.py ordinary_networks_are_exported_as_written",
   records_are_never_joined=("", "if joins(x, data):", "if False:"))
of("deploy/export_torch.py", EXPORT, joined_projections_go_back_to_the_first=("", "flat[first:first + len(value)] = value", "flat[:len(value)] = value"))
# ---- options and settings that would have no effect ----------------------------------------------
of("common/base/cli/parse.c", "tests/unit/cli/test_cli",
   options_without_their_option_are_ignored=("static clv_code check_options(", "p->is_given[i] && o->needs &&", "!p && o->needs &&"))
MISTAKES = "tests/net/operations/test_cli.py command_line_mistakes_are_refused"
of("master/session.c", MISTAKES,
   resume_ignores_fresh=("int clv_cmd_train(", "a->run.fresh && a->run.resume", "false"),
   plan_ignores_output=("int clv_cmd_plan(", "!a->run.schedule && a->run.out", "false"))
WORKER_CHECK = "tests/net/operations/test_checks.py worker_check_warns_of_too_few_concurrent_calls"
of("worker/serve.c", WORKER_CHECK,
   missing_cores_are_not_named=("static int run_daemon(", "warn_of_missing_cores(config);", "(void)warn_of_missing_cores;"),
   check_does_not_look_at_state_dir=("static int check_files(", "clv_epochs_check(c->state_dir, &err) != CLV_OK", "false"))
of("worker/store/epochs.c", "tests/unit/store/test_epochs",
   a_file_is_a_state_folder=("static clv_code check_folder(", "!S_ISDIR(st.st_mode)", "false"))
of("common/model/config/override.c", "tests/unit/config/test_errors",
   labels_of_settings_are_not_shown=("static clv_code apply_set_option(", "if (given_label)", "if (false)"))
of("master/sweep/runs.c", "tests/net/training/test_sweep.py wrong_values_are_refused_before_the_first_run",
   sweeps_blame_set=("static clv_exit_code check_run(", ".set_labels = set_options.labels", ".set_labels = NULL"))
of("master/run/run_sampling.c", "tests/net/training/test_sweep.py plan_says_that_sampling_shows_rare_classes",
   weights_of_no_class_are_kept_quiet=("static clv_code check_weight_count(", "if (n_weights <= n_classes) return CLV_OK;", "return CLV_OK;"))
