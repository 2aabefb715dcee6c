# SPDX-License-Identifier: Apache-2.0
"""Deliberate breaks of the product, each of which must fail a test; tests/check-breaks tries them.

A break is a name, a file, edits and a test. An edit is (in, old, new): `old` has exactly one place
within the braces that open behind the text `in` (a function, a row of a table; "" is the whole
file), and becomes `new`. A fourth item is the path of another file that the edit belongs to. Spaces
and line ends between words do not count. The test is a program
below the build's folder with its arguments. Rows of ops are in breaks_ops.py, those for what
transformers need on processors in breaks_transformers.py, for devices in breaks_gpu.py, for
knowledge that workers keep from earlier sessions in breaks_known.py, for the judgement of what a
worker can read in breaks_look.py, for the records of a run and readers of data in breaks_runs.py,
for tables in breaks_tables.py, for guards in breaks_guards.py.
"""
import collections

Break = collections.namedtuple("Break", "name path edits test")
BREAKS = []


def of(path, test, **edits):
    """Adds breaks of one file: name=edit or name=[edit, ...]. In a name _ stands for a space."""
    for name, e in edits.items():
        BREAKS.append(Break(name.replace("_", " "), path, e if isinstance(e, list) else [e], test))


# ---- shares of the cores -------------------------------------------------------------------------
of("common/net/fair/scheduler.c", "tests/unit/fair/test_scheduler",
   a_tenant_starts_with_what_it_saved=("static void activate_share", "owner->virtual_ns = CLV_MAX(owner->virtual_ns, least_tenant_time(s->scheduler));", ";"),
   threads_are_charged_as_one=("static void charge", "thread_ns = wall_ns * s->n_threads_held;", "thread_ns = wall_ns;"),
   a_share_starts_with_what_it_saved=("static void activate_share", "s->virtual_ns = CLV_MAX(s->virtual_ns, least_share_time(owner));", ";"),
   the_last_to_ask_is_first=("static clv_share *first_waiting_of_tenant", "s->request_number < first->request_number", "s->request_number > first->request_number"),
   the_last_tenant_to_ask_is_first=("static clv_share *first_waiting_share", "s->request_number < first->request_number", "s->request_number > first->request_number"),
   weights_do_not_count=("static void charge", "(thread_ns + s->owner_tenant->weight - 1) / s->owner_tenant->weight", "thread_ns"),
   small_ones_overtake=("static void start_waiting_shares", "s->n_threads_wanted <= t->n_free", "t->n_free"),
   a_slice_has_no_length=("static bool is_slice_over", "|| now - s->slice_start_ns < s->scheduler->o.slice_ns", ""),
   a_stopped_share_waits=("static void wait", "s->is_waiting && !s->is_stopped", "s->is_waiting"),
   a_credit_has_no_limit=("void clv_share_refund_time", "ns = CLV_MIN(ns, now - s->slice_start_ns - s->refunded_ns);", ""),
   a_credit_is_not_the_tenants=("void clv_share_refund_time", "subtract_saturated( s->owner_tenant->virtual_ns, ns * s->n_threads_held / s->owner_tenant->weight)", "s->owner_tenant->virtual_ns"))

# ---- layers that name their inputs ---------------------------------------------------------------
of("common/model/models/from.c", "tests/unit/models/test_models",
   a_layer_may_be_read_by_nobody=("static bool is_read_later", "return node == g->output_node;", "return node <= g->output_node;"),
   inputs_come_in_any_order=("clv_code clv_layer_find_inputs", "in[i] = find_node(", "in[n - 1 - i] = find_node("),
   a_layer_may_read_itself=("static bool is_layer_name", "return true;", "return false;"),
   records_may_be_joined=("clv_code clv_layer_check_batch_dim", "!g->has_per_input_batches", "g->n_nodes"))
of("common/model/graph/joined.c", "tests/net/training/test_graphs.py",
   values_of_a_cut_are_one_value=("clv_code clv_graph_split(", "*start = part.stop += width;", "part.stop += width;"))
of("common/model/graph/slice.c", "tests/net/training/test_graphs.py",
   what_only_passes_is_lost=("static bool is_crossing", "n->layer < layers", "n->layer + 1 == layers"))
of("master/train/stage_inputs.c", "tests/net/training/test_inputs.py",
   every_input_is_the_first=("clv_tensor *clv_batch_input", "batch->inputs[k]", "batch->inputs[k - k]"))
of("master/train/steps.c", "tests/net/training/test_inputs.py",
   waiting_batches_keep_one_input=("static clv_code hold", "k < t->b->inputs.n", "k < 1"))
of("master/train/egress.c", "tests/net/training/test_inputs.py",
   inputs_have_no_name_in_the_record=("static clv_code make_row", "t->b->inputs.n > 1", "t->b->inputs.n > 8"))
of("master/plan/privacy_refuse.c", "tests/unit/plan/test_plan_graphs",
   inputs_of_later_stages_are_not_asked_about=("clv_code clv_privacy_check", "i < b->n_stages; i++) CLV_TRY(check_model_inputs(", "i < 1; i++) CLV_TRY(check_model_inputs("))
of("master/plan/privacy.c", "tests/unit/plan/test_plan_graphs",
   lengths_count_as_records=("static clv_findings get_input_findings", "clv_graph_length_limit(g, k) ?", "clv_graph_length_limit(g, k) < 0 ?"))
of("common/model/graph/reads.c", "tests/unit/plan/test_plan_graphs",
   what_is_also_a_length_is_no_record=("int64_t clv_graph_length_limit", "return 0;", "continue;"))
of("master/plan/blueprint.c", "tests/unit/plan/test_plan_graphs",
   inputs_of_later_stages_are_not_told=("static void add_input_rows", "s->planned_worker < 0", "s->planned_worker < 0 || i"),
   values_that_cross_are_told_as_one=("static void append_crossing_values", "r->n_values < 2", "r->n_values"))
# ---- losses --------------------------------------------------------------------------------------
of("kernels/ops/class_loss_int.h", "tests/ops/test_golden",
   ignored_places_count=("clv_code read_label(", "labels[i] == k->d.attrs.ignore_index", "labels[i] == k->d.attrs.ignore_index && !s"),
   a_weighted_mean_is_over_places=("clv_code sum_counted_weights(", "*ret += class_weight(s, label);", "*ret += 1;"))
of("kernels/ops/cross_entropy.c", "tests/ops/test_golden",
   smoothing_forgets_the_weights=("static double position_loss(", "total_weight += class_weight(s, c) * (log_sum_exp - x[c]);", "total_weight += log_sum_exp - x[c];"),
   gradients_forget_the_smoothing=("static void compute_position_grad(", "if (e != 0)", "if (false)"))
of("master/train/steps.c", "tests/net/training/test_places.py",
   micro_batches_share_by_records=("static float compute_loss_share(", "micro_batch_weight > 0 ? micro_batch_weight", "micro_batch_weight > batch_weight ? micro_batch_weight"))
of("master/train/batch_weight.c", "tests/unit/train/test_accuracy",
   ignored_places_are_judged=("size_t clv_trainer_count_labelled(", "n_labelled += !clv_trainer_is_ignored_label(t, row_labels[i]);", "n_labelled += t && row_labels[i] != INT64_MIN;"),
   places_weigh_alike=("double clv_trainer_batch_weight(", "class_weight_of(&t->config->loss.weight, row_labels[i])", "class_weight_of(&t->config->loss.weight, -1)"))
of("common/model/models/loss.c", "tests/net/training/test_places.py",
   a_session_keeps_its_weights=("clv_code clv_session_make_loss_graph(", "if (config->loss.weight.n)", "if (false)"))
TARGETS = "tests/net/training/test_targets.py losses_weights_and_scores_equal_torch_and_sklearn"
of("common/model/models/loss.c", TARGETS,
   targets_weigh_alike=("static clv_code add_all_targets(", "add_scaled(g, loss, s->loss_weight, &loss, err)", "add_scaled(g, loss, s->loss_weight > 0, &loss, err)"),
   pos_weight_counts_negatives_too=("static clv_code add_pos_weight(", "pair[1] = t;", "pair[1] = pair[0];"),
   targets_share_their_outputs=("static clv_code add_all_targets(", "column += clv_target_width(s);", "column += s->n_classes > 0;"))
of("master/train/eval.c", TARGETS,
   the_sum_forgets_the_weights=("static void finish_target_losses(", "c->loss.targets[k].loss_weight * ", ""),
   targets_are_scored_by_the_first_output=("static clv_code add_targets_of_record(", "outputs += clv_target_width(&c->loss.targets[k]);", ""))
of("master/plan/targets.c", TARGETS,
   labels_move_to_the_next_record=("static float label_of(", "(r->start + i) * r->stride", "(r->start + (i + 1) % r->n) * r->stride"))
MASKED = "tests/net/training/test_targets.py losses_and_scores_without_some_labels_equal_torch_and_sklearn"
of("common/model/models/loss.c", MASKED,
   outputs_without_a_label_stay=("static clv_code add_harmless_outputs(", 'return add_node(g, "where", NULL, 0, in, 3, ret, err);', "return *ret = x, CLV_OK;"),
   outputs_without_a_label_are_0=("static double find_harmless_output(", "? -1000 : 0", "? 0 : 0"),
   masked_means_forget_the_factor=("static clv_code add_masked_loss(", "CLV_TRY(add_mean(g, factor, factor, &pair[1], err));", "return *ret = pair[0], CLV_OK;"))
of("master/plan/targets.c", MASKED,
   denominators_are_of_the_micro_batch=("static void fill_mask(", "i < r->n_batch; i++)", "i < r->n; i++)"),
   a_missing_class_is_the_first=("static void fill_classes(", "ignores ? IGNORED_CLASS : 0", "ignores ? 0 : 0"))
of("master/plan/targets.c", "tests/net/training/test_targets.py weights_of_the_classes_of_targets_equal_torch",
   labels_of_targets_weigh_alike=("double clv_target_label_weight(", "return has_weight ?", "return false ?"))
of("master/run/run_class_weights.c", "tests/net/training/test_targets.py weights_of_the_classes_of_targets_equal_torch",
   classes_of_targets_are_never_balanced=("static clv_code balance_target(", "counts[class]++;", "counts[0]++;"))
of("master/train/eval.c", MASKED,
   missing_labels_are_scored=("static clv_code add_target_of_record(", "if (isnan(label)) return CLV_OK;", "if (isnan(label)) label = 0;"),
   batches_weigh_alike_in_masked_means=("static clv_code add_target_losses(", "e->target_weight_sums[k] += rows.weight_sum;", "e->target_weight_sums[k] += (double)n;"))
of("master/plan/targets.c", "tests/net/training/test_targets.py sets_without_any_label_of_a_target_are_refused_or_named",
   targets_are_trained_without_labels=("clv_code clv_targets_check_labelled(", "if (count_labelled(", "if (true || count_labelled("))
of("master/plan/look_text.c", "tests/net/training/test_targets.py records_without_labels_are_counted_predicted_and_reported",
   gradients_without_labels_are_not_named=("static void describe_targets(", "masks_missing || c->loss.targets[k].masks_missing;", "masks_missing;"))
of("master/run/run_describe_sets.c", "tests/net/training/test_targets.py records_without_labels_are_counted_predicted_and_reported",
   missing_labels_are_not_counted=("static size_t count_unlabelled(", "n += !clv_dataset_has_target(", "n += false && !clv_dataset_has_target("))
of("master/data/scan.c", "tests/unit/data/test_table_cache",
   any_label_may_be_missing=("static bool is_missing_label(", "->o.missing == CLV_MISSING_MASK", "->o.missing < 99"))
of("master/run/run_best.c", "tests/net/training/test_targets.py",
   any_target_is_the_best=("bool clv_run_is_best_evaluation(", "b.metric, r->config->checkpoint.best_target)", "CLV_BEST_LOSS, r->config->checkpoint.best_target)"))
of("master/sweep/scores.c", "tests/unit/sweep/test_scores",
   any_target_has_the_score=("static clv_code read_target(", "strcmp(key, l->target) != 0", "!*key"))
of("master/run/run_table.c", "tests/net/training/test_targets.py",
   outputs_go_to_the_targets_of_today=("clv_code clv_run_read_learnt(", "return check_targets(r->config, *ret, err);", "return check_targets(r->config, *ret, err) == CLV_EXHAUSTED ? CLV_EXHAUSTED : CLV_OK;"))
of("master/data/table_facts.c", "tests/net/training/test_targets.py check_and_plan_say_what_the_targets_are",
   only_the_first_target_is_told=("static clv_code find_revealed_target(", "k < count_targets(ds)", "k < 1"))
of("master/train/optimizer.c", "tests/net/training/test_habits.py",
   normalisations_decay=("static bool has_weight_decay(", "p->shape.rank > 1 && !is_normalisation(g->nodes[p->node].op)", "p->shape.rank > 1 || is_normalisation(g->nodes[p->node].op)"),
   nothing_is_left_out=("static size_t make_group_per_list(", "if (list_index) ret[n].weight_decay = 0;", ";"))
of("common/model/optim/schedule.c", "tests/unit/optim/test_schedule",
   no_rate_is_zero=("double clv_lr_at(", "if (step < warmup && schedule->starts_at_zero) return", "if (!warmup && schedule->starts_at_zero) return"))
of("common/model/config/session.c", "tests/net/training/test_habits.py",
   accumulation_is_forgotten=("static clv_code set_accumulation(", "c->pipeline.micro_batches = parts;", ""))
of("master/score/values.c", "tests/unit/score/test_score",
   macro_counts_classes_that_never_occur=("static void compute_count_values(", "n_seen_classes += k->n_labels + k->n_answers > 0;", "n_seen_classes++;"))
of("master/score/score.c", "tests/unit/score/test_score",
   ignored_places_are_scored=("clv_code clv_score_add(", "s->o.has_ignored_label && labels[i] == s->o.ignored_label", "s->o.has_ignored_label && labels[i] > s->o.ignored_label"),
   scores_go_on_from_the_last_time=("void clv_score_reset(", "memset(s->counts, 0, n * sizeof *s->counts);", ""))
of("master/score/ranks.c", "tests/unit/score/test_score",
   equal_scores_have_an_order=("static double compute_twice_rank_sum(", "(double)(2 * n_below + t.n + 1)", "(double)(2 * (n_below + t.n))"))
of("master/train/eval.c", "tests/net/training/test_places.py",
   some_records_are_not_scored=("static clv_code add_scores(", "i < n; i++", "i < n / 2; i++"))
of("master/train/eval.c", "tests/net/hostile/test_order.py",
   records_are_evaluated_as_they_stand=("static clv_code draw_sending_order(", "clv_rng_permutation(&rng_key, e->row_of_sent_record, n);", "for (uint32_t i = 0; rng_key.seed && i < n; i++) e->row_of_sent_record[i] = i;"),
   answers_stay_in_the_sent_order=("static void store_rows(", "e->collects_all_rows ? e->row_of_sent_record[s->at + i] : i", "e->collects_all_rows ? s->at + i : i"))
of("common/model/graph/attrs.c", "tests/unit/graph/test_ops",
   weights_may_be_below_zero=("static clv_code set_class_weights(", "if (!(x >= row->low && x <= row->high))", "if (false)"))

# ---- ops of transformers -------------------------------------------------------------------------
of("kernels/ops/embedding.c", "tests/ops/test_refusals embedding",
   columns_may_be_missing=("static clv_code check_columns(", "in->rank < 2 || CLV_MAX(column, minus_column) >= in->dim[in->rank - 1]", "false"),
   what_is_subtracted_needs_no_column=("static clv_code check_columns(", "if (column < 0)", "if (false)"))
of("kernels/ops/positions.c", "tests/ops/test_refusals positions",
   there_are_steps_without_a_position=("static clv_code positions_shape(", "if (steps + a->offset > a->rows)", "if (false)"))
of("kernels/kernels.h", "tests/unit/graph/test_sequence",
   a_difference_may_overflow=("static inline int64_t clv_row_number_at(", "if (l->minus >= 0 && __builtin_sub_overflow(row, at[l->minus], &row)) return INT64_MIN;", "if (l->minus >= 0) row = (int64_t)((uint64_t)row - (uint64_t)at[l->minus]);"))
of("kernels/ops/groupnorm.c", "tests/ops/test_refusals groupnorm",
   groups_share_channels=("static clv_code groupnorm_shape(", "if (in->dim[1] % s->attrs->groups)", "if (false)"))
of("kernels/ops/last.c", "tests/ops/test_refusals last",
   samples_without_a_length_are_taken=("static clv_code last_shape(", "in[1].rank != 1 || in[1].dim[0] != in[0].dim[0]", "false"))
of("kernels/ops/linear.c", "tests/unit/graph/test_ops",
   biases_are_drawn_with_a_deviation=("static clv_slot choose_init(", "(is_bias && a->init_std > 0)", "(is_bias && false)"))
of("common/model/graph/params.c", "tests/unit/graph/test_ops",
   two_parameters_have_one_name=("clv_code clv_params_make(", "CLV_TRY(check_names(p, g, err));", "(void)check_names;"))

# ---- accounts ------------------------------------------------------------------------------------
of("common/net/fair/account.c", "tests/unit/fair/test_account",
   a_refused_charge_stays=("clv_account *clv_account_try_charge", "discharge_up_to(a, at, q, n);", ""),
   a_discharge_counts_below_alone=("void clv_account_discharge", "discharge_up_to(a, NULL, q, n);", "discharge_up_to(a, a->o.parent, q, n);"),
   strangers_numbers_are_told=("clv_code clv_account_fail_exceeded", "if (a->o.is_shared)", "if (false)"))

# ---- adapters ------------------------------------------------------------------------------------
of("common/model/graph/lora.c", "tests/unit/graph/test_lora",
   any_end_of_a_name_is_a_target=("static bool name_matches_target(", "n == len || name[n - len - 1] == '.'", "true"),
   rslora_scales_as_lora=("static clv_code add_adapter(", "l->rslora ? sqrt((double)l->r) : (double)l->r", "(double)l->r"),
   readers_read_the_bare_layer=("static clv_code copy_node(", "add_adapter_sum(w, n, in[0], at, err)", "add_adapter_sum(w, n, in[0], &(int){*at}, err)"),
   other_stages_get_adapters=("static bool is_in_layer_range(", "&& n->layer >= w->first_layer", ""),
   b_is_drawn=("static clv_code add_adapter(", "make_int_attr(CLV_ATTR_INIT_ZERO, 1)", "make_int_attr(CLV_ATTR_INIT_ZERO, 0)"))
of("master/plan/adapters.c", "tests/unit/plan/test_adapters",
   the_base_learns=("bool clv_is_param_frozen_by_lora(", "return true;", "return false;"),
   a_name_of_nothing_is_taken=("clv_code clv_adapters_check(", "if (!has_trainable_param_in(", "if (false && !has_trainable_param_in("))
of("master/plan/privacy.c", "tests/unit/plan/test_adapters",
   adapters_are_as_secret_as_their_file=("const char *clv_privacy_why_hides_nothing(", "is_adapter ? !s->lora.from : !clv_stage_has_master_weights(s) || starts_from_seed", "!clv_stage_has_master_weights(s) || starts_from_seed"),
   zeros_hide=("const char *clv_privacy_why_hides_nothing(", "if (has_random_weights && n->op == CLV_OP_LINEAR && n->attrs.init_zero)", "if (false)"))
FIXED = "tests/unit/engine/test_fixed"
of("common/model/graph/params.c", FIXED,
   what_is_fixed_lies_among_what_learns=("void clv_params_fix_frozen(", "p->trainable_bytes = at; reassign_offsets(p, true, true, &at);", "reassign_offsets(p, true, true, &at); p->trainable_bytes = at;"))
of("common/engine/module_memory.c", FIXED,
   fixed_parameters_are_only_frozen=("static clv_code fill_module(", "if (o->is_frozen_for_good) clv_params_fix_frozen(m->params);", ""))
of("common/engine/module_state.c", FIXED,
   fixed_parameters_have_moments=("static bool has_moments(", "&& !p->is_fixed", ""))
of("master/train/state.c", "tests/net/training/test_lora.py",
   moments_of_the_frozen_are_put_back=("static bool is_moment_of_fixed_param(", "return p->is_fixed;", "return false;"))
of("common/model/weights/peft.c", "tests/unit/weights/test_peft",
   a_pattern_is_any_end_of_a_name=("static bool is_layer_match(", "n == len || layer[n - len - 1] == '.'", "true"),
   dora_is_taken_for_lora=("static clv_code require_off(", "if (is_off) return CLV_OK;", "if (is_off || key) return CLV_OK;"),
   keys_of_others_are_skipped=("static clv_code read_member(", "if (is_off || clv_json_keys_have(r->ignored, text, key.len)) return CLV_OK;", "return CLV_OK;"),
   a_start_changes_the_base_in_silence=("static clv_code read_init_method(", "== 0) return CLV_OK;", "!= 0) return CLV_OK;"))
of("master/run/run_export.c", "tests/net/training/test_lora.py",
   merged_weights_are_not_scaled=("static void add_adapter_product(", "read_value(w, (size_t)at) + scale * sum", "read_value(w, (size_t)at) + sum * (scale > 0)"),
   a_square_weight_lies_as_others_do=("static clv_code merge_adapter(", "scale, is_transposed, merged_values", "scale, is_transposed && in_features != out_features, merged_values"),
   a_head_stays_behind=("static clv_code find_module(", "i < s->lora.train.n && !*ret", "i < s->lora.train.n && !*ret && !x"),
   a_missing_base_is_no_matter=("static clv_code merge_stage(", "merged == n_adapters", "merged <= n_adapters"))
of("master/plan/adapter_file.c", "tests/net/training/test_lora.py",
   another_scale_is_taken=("static clv_code check_scale(", "fabs(folder_scale - session_scale) <= 1e-9 * session_scale", "session_scale > 0"),
   adapters_of_no_lora_are_strangers=("static clv_code check_layers_have_adapters(", "CLV_TRY(check_layer_has_adapter(b, i, a, b->stages[i].params->list[k].name, err));", "if (!a) CLV_TRY(check_layer_has_adapter(b, i, a, b->stages[i].params->list[k].name, err));"))
of("master/plan/adapters.c", "tests/net/training/test_lora.py",
   checkpoints_have_the_artifact_again=("bool clv_is_param_checkpointed(", "!(s->weights_artifact && p->trainable && p->frozen)", "s || p"))
of("common/model/config/emit.c", "tests/unit/plan/test_adapters",
   no_adapters_are_written=("static void write_row(", "is_section_absent(w, row, base)", "(is_section_absent(w, row, base) && false)"))
of("master/api/core/module.c", "tests/net/training/test_lora.py",
   an_adapter_begins_as_its_layer=("clv_code clv_layer_keys(", "if (is_later_node_of_layer(g, i))", "if (is_later_node_of_layer(g, i) && false)"))
of("worker/service/artifact.c", "tests/net/training/test_lora.py",
   an_artifact_has_adapters=("static clv_code list_wanted_tensors(", "clv_name_is_of_adapter(p->name)", "false"))

# ---- folders of pretrained weights ---------------------------------------------------------------
PRETRAINED = "tests/unit/weights/test_pretrained"
of("common/model/weights/index.c", PRETRAINED,
   an_index_names_any_file=("static clv_code check_file_name(", "!clv_weights_is_file_name(file) ||", ""),
   an_index_has_no_limit=("static clv_code read_weight_map(", "n > CLV_WEIGHTS_MAX_TENSORS", "false"))
of("common/model/weights/names.c", PRETRAINED,
   the_first_of_two_names_will_do=("clv_code clv_weights_find_name(", "s.second_found_index != CLV_WEIGHTS_NONE", "false"),
   fresh_names_end_anywhere=("bool clv_weights_is_newly_initialised(", "(!name[len] || name[len] == '.')", "true"))
of("common/model/weights/folder.c", PRETRAINED,
   an_index_is_believed=("static clv_code open_part_once(", "code = check_part_against_index(f, k, err);", "(void)check_part_against_index;"),
   all_files_are_opened=("clv_code clv_weights_folder_match_tensors(", "clv_name_list missing = {0};", "clv_name_list missing = {0}; for (size_t k = 0; k < f->index.n_files; k++) { CLV_TRY(open_part_once((clv_weights_folder *)(uintptr_t)f, k, err)); }"),
   two_parameters_take_one_tensor=("clv_code clv_weights_folder_match_tensors(", "return check_no_tensor_shared(f, want, ret_found, n, err);", "(void)check_no_tensor_shared; return CLV_OK;"))
of("common/model/weights/common.c", PRETRAINED,
   a_file_may_change_while_it_is_read=("clv_code clv_weights_check_stamp(", "if (now.size", "if (label || now.size"))
PARTS = "tests/unit/weights/test_parts"
of("common/model/weights/read.c", PARTS,
   parts_lie_behind_their_tensor=("clv_code clv_weights_read_range(", "n > e->bytes - offset", "false"),
   a_file_read_in_parts_may_change=("clv_code clv_weights_read_range(", "return clv_weights_check_stamp(f->fd.fd, f->label, &f->hashed_stamp, err);", "return CLV_OK;"))
of("common/model/weights/write.c", PARTS,
   bytes_may_be_missing=("static clv_code check_complete(", "if (w->destinations[i].bytes_written != w->destinations[i].bytes)", "if (w->destinations[i].bytes_written > w->destinations[i].bytes)"),
   parts_come_in_any_order=("clv_code clv_weights_writer_put(", "offset != t->bytes_written ||", ""),
   what_is_given_up_stays=("void clv_weights_writer_free(", "if (w->tmp_path) unlink(w->tmp_path);", ";"))
MEMORY = "tests/net/training/test_memory.py"
of("master/train/modules.c", MEMORY,
   evaluations_have_moments=("static clv_code load_modules(", "if (t->use != CLV_TRAINER_EVALUATION) CLV_TRY(make_optimizer(t, err));", "CLV_TRY(make_optimizer(t, err));"))
of("worker/service/artifact.c", "tests/net/training/test_pretrained_weights.py artifact_folder_reads_only_the_needed_file",
   an_artifact_comes_at_once=("", "enum { MAX_PART_BYTES = CLV_SHARED_TENSOR_CHUNK_BYTES };", "enum { MAX_PART_BYTES = 1 << 26 };"))
of("master/api/core/state_pieces.c", MEMORY,
   all_pieces_are_asked_for_at_once=("", "MIN_WINDOW_BYTES = 2 << 20, MAX_WINDOW_BYTES = 16 << 20", "MIN_WINDOW_BYTES = 64 << 20, MAX_WINDOW_BYTES = 64 << 20"),
   items_come_whole=("static bool supports_pieces(", "return !p->m->node ||", "return p->m->node > 1000 &&"))
of("common/model/weights/checkpoint_read.c", MEMORY,
   checkpoints_are_read_to_be_verified=("static clv_code verify_file(", "CLV_TRY(clv_sha256_fd(fd.fd, fd.size, NULL, label, &digest, err));", "CLV_AUTO(clv_bytes_done) clv_bytes all = {0}; CLV_TRY(clv_weights_fd_read_all(&fd, SIZE_MAX / 2, &all, err)); CLV_TRY(clv_sha256_of(all.data, all.len, &digest, err));"))
of("master/api/core/state_pieces.c", "tests/net/hostile/test_hostile_state.py state_pieces_give_same_bits_and_wrong_ones_are_refused",
   any_piece_is_believed=("static cleave_status check_piece(", "if (t && t->dtype == CLV_U8 && t->bytes == x->length &&", "if (t && strlen(x->received_item.name) < 1000) return CLEAVE_OK; if (t && t->dtype == CLV_U8 && t->bytes == x->length &&"))
of("common/engine/module_state.c", "tests/net/hostile/test_rules.py r5_42_a_piece_beyond_its_item",
   pieces_lie_behind_their_item=("clv_code clv_state_item_part(", "|| length > item->bytes - offset", ""))
of("common/net/wire/frame_check.c", "tests/net/hostile/test_rules.py r5_41_a_piece_that_is_none",
   a_piece_has_any_bytes=("static clv_code check_state_piece(", "t->dtype == CLV_U8 && t->bytes == f->state.piece_length", "t->bytes"))
of("common/model/weights/convert.c", PRETRAINED,
   small_halves_are_zero=("static float float_from_f16(", "(float)fraction * 0x1p-24f", "0.0f"))

PRETRAINED_NET = "tests/net/training/test_pretrained_weights.py"
of("worker/store/store.c", PRETRAINED_NET,
   files_of_a_folder_are_believed=("static clv_code check_file(", "if (memcmp(f ? &f->sha256 : &a->stated_digest, &found_digest, sizeof found_digest) == 0) return CLV_OK;", "return CLV_OK;"),
   the_list_of_a_folder_is_believed=("static clv_code open_folder(", "memcmp(&found_digest, &a->stated_digest, sizeof found_digest) != 0", "false"))
of("master/plan/privacy.c", PRETRAINED_NET,
   new_heads_count_as_known=("static void note_layer_params(", "f->starts_from_seed &=", "f->starts_from_seed &= false &&"))
of("worker/service/artifact.c", PRETRAINED_NET,
   fresh_names_are_looked_for=("static clv_code load_into_module(", "r->n_new_params", "0"))

# ---- bases that several sessions share -----------------------------------------------------------
BASES, BASES_NET = "tests/unit/store/test_bases", "tests/net/hostile/test_shared_bases.py"
of("worker/store/shared_tensors.c", BASES,
   an_owner_does_not_matter=("static bool has_key(", "&& strcmp(x->owner, key->owner) == 0", ""),
   an_artifact_does_not_matter=("static bool has_key(", "memcmp(&x->artifact, &key->artifact, sizeof x->artifact) == 0 &&", ""),
   a_base_may_be_written=("static clv_code fill_memory(", "mprotect(x->data, x->bytes, PROT_READ) == 0", "x->data"),
   a_base_stays_for_ever=("static bool drop_user(", "if (--x->n_users) return false;", "if (--x->n_users || b) return false;"),
   what_was_not_filled_is_full=("static clv_code fill_shared_tensor(", "code == CLV_OK ? FILLED : EMPTY", "FILLED"),
   who_waits_cannot_leave=("static clv_code ensure_filled(", "CLV_TRY(clv_cancel_hook_check(cancel_hook, err));", "(void)cancel_hook; (void)err;"))
of("worker/service/artifact.c", BASES_NET,
   strangers_share=("static clv_code share_tensor(", 'spec->shared ? "" : f->session->owner', 'spec ? "" : f->session->owner'),
   nobody_shares=("static clv_code share_tensor(", 'spec->shared ? "" : f->session->owner', "spec ? f->session->name : f->session->owner"),
   what_is_closed_may_learn=("static clv_code check_unreadable_params_are_frozen(", "spec->readable == CLV_READ_NONE", "spec->readable > CLV_READ_NONE"),
   a_base_is_given_out=("static clv_code withhold_frozen_params(", "spec->readable != CLV_READ_ALL", "spec->readable > CLV_READ_NONE"),
   an_open_base_is_withheld=("static clv_code withhold_frozen_params(", "spec->readable != CLV_READ_ALL", "spec->readable <= CLV_READ_NONE"))
of("worker/service/load_module.c", BASES_NET,
   every_session_has_a_base_of_its_own=("static clv_code list_shareable_params(", "|| !r->frozen_has_no_grads_or_moments", "|| true"),
   fresh_parameters_are_lent=("static clv_code list_shareable_params(", "!clv_weights_is_newly_initialised(r->frozen_names[i], r->new_param_names, r->n_new_params)", "r->frozen_names[i]"))
of("common/engine/module_memory.c", BASES_NET,
   what_is_lent_costs_nothing=("static clv_code charge_known_memory(", "m->params->total_bytes + m->params->shared_bytes", "m->params->total_bytes"))
of("common/engine/node_frames.c", BASES_NET,
   pieces_of_a_base_are_given=("static clv_code find_piece(", "CLV_TRY(clv_module_check_readable(m, &item, err));", ""),
   a_snapshot_has_the_base=("static clv_code find_items(", "&& !item.is_withheld", ""))
of("common/engine/node_files.c", BASES_NET,
   files_have_the_base=("static clv_code list_state_items(", "if (item->is_shared || item->is_withheld) continue;", ""))
of("common/engine/module_state.c", BASES_NET,
   a_base_is_written=("clv_code clv_state_item_check(", "if (item->is_shared)", "if (false)"),
   a_piece_opens_the_rest=("clv_code clv_module_state_set_part(", "CLV_TRY(clv_state_item_set(&part, part.dtype, &part.shape, data, err));", "if (item.is_withheld) m->withheld_params[clv_params_find(m->params, name) - m->params->list] = false; CLV_TRY(clv_state_item_set(&part, part.dtype, &part.shape, data, err));"))
of("master/run/run_export.c", "tests/net/training/test_lora.py",
   a_part_is_exported_as_a_whole=("static clv_code check_no_stage_missing(", "if (!missing_stages) return CLV_OK;", "return CLV_OK;"))

# ---- bases in bf16 -------------------------------------------------------------------------------
NARROW = "tests/unit/graph/test_narrow"
of("kernels/cpu/linear.c", NARROW,
   every_part_is_the_first=("static const float *widen_rows(", "first_row * k->w_columns", "0 * first_row * k->w_columns"),
   sums_begin_anew_with_each_part=("static clv_code multiply_by_w(", "first_row ? 1 : 0", "0"),
   a_bias_is_left_out_of_narrow_layers=("static clv_code bf16_weight_forward(", "if (k->k.d.attrs.bias)", "if (false)"))
of("kernels/cpu/linear_bf16.c", NARROW,
   narrow_weights_are_read_as_f32=("static cpu_pairs_factor make_weight_factor(", "is_bf16 = k->k.d.bf16_weight;", "is_bf16 = false;"))
of("common/model/graph/params.c", NARROW,
   weights_that_learn_are_narrow=("void clv_params_convert_frozen_to_bf16(", "!q->frozen ||", ""),
   narrow_weights_take_as_much=("void clv_params_convert_frozen_to_bf16(", "q->bytes = q->n * clv_dtype_size(CLV_BF16);", ";"))
of("common/base/tensor/tensor.c", NARROW,
   halves_are_cut_off=("uint16_t clv_bf16_of(", "0x7fff + (bits >> 16 & 1)", "0"))
of("master/api/core/module.c", "tests/net/training/test_lora.py bf16_base_gives_the_same_bits_in_any_placement",
   the_base_is_f32_all_the_same=("static cleave_status enable_bf16_storage(", "m->stores_frozen_as_bf16 = o->frozen_bf16;", "m->stores_frozen_as_bf16 = o->frozen_bf16 && m->node > 1000;"))

# ---- text ----------------------------------------------------------------------------------------
TOKENS = "tests/unit/tokens/test_tokens"
of("master/tokens/bpe.c", TOKENS,
   merges_have_no_order=("static bool is_pair_before(", "return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;", "return a->at < b->at;"),
   a_pair_that_is_gone_is_joined=("static bool is_pair_current(", "return m && m->id == p->id;", "return m != NULL;"),
   unknown_neighbours_are_always_one=("static void add_character_symbols(", "(e || !t->fuses_unknown)", "e"),
   half_a_character_falls_back=("static bool add_byte_symbols(", "return false;", "break;"))
of("master/words.c", "tests/net/training/test_documents.py long_pages_become_overlapping_windows",
   windows_ignore_the_ends_of_a_tokenizer_json=("static int32_t choose_token_id(", "return given_id < 0 ?", "return given_id < 1 << 30 ?"))
of("common/model/config/session.c", "tests/unit/config/test_errors",
   a_tokenizer_json_has_options=("static clv_code check_tokenizer_options(", 'strcmp(d->tokenizer.file + n - 5, ".json") != 0', 'strcmp(d->tokenizer.file + n - 5, ".json") == 0'))
of("master/tokens/unigram.c", TOKENS,
   the_last_of_equal_paths_wins=("static void improve_path(", "!(score > to->score)", "!(score >= to->score)"),
   unknown_neighbours_are_several=("clv_code clv_unigram_encode(", "is_unknown && end < len &&", "!is_unknown && end < len &&"),
   a_score_is_rounded_once=("static clv_code read_score(", "*ret = parse_score(number_text);", "(void)parse_score;", "master/tokens/model_file.c"))
of("master/tokens/vocab_file.c", TOKENS,
   pieces_in_utf16_are_not_named=("static clv_code check_is_vocab(", "if (encoding_name)", "if (encoding_name && !len)"))
of("master/tokens/wordpiece.c", TOKENS,
   long_words_have_pieces=("clv_code clv_wordpiece_encode(", "if (count_characters(word, len) > t->max_word_chars)", "if (count_characters(word, len) > SIZE_MAX - 1)"),
   half_a_word_is_known=("clv_code clv_wordpiece_encode(", "e->out->n = n_ids_before;", "(void)n_ids_before;"))
of("master/tokens/chars.c", TOKENS,
   marks_stay_as_they_came=("clv_code clv_codepoints_decompose(", "CLV_TRY(sort_marks(&out, err));", "(void)sort_marks;"),
   punctuation_is_that_of_a_newer_unicode=("bool clv_char_is_punctuation(", "if (c == 0x166d) return true;", "if (c == 0x166d) return false;"),
   a_normalizer_may_fill_the_memory=("clv_code clv_codepoints_add(", "if (p->max_n && p->n == p->max_n)", "if (p->max_n && p->n == p->max_n && p->n > 5000)"))
of("master/tokens/file_keys.c", TOKENS,
   any_pattern_is_taken=("static clv_code read_choice(", "if (clv_token_file_text_equals(f, k->names[*ret]))", "if (k->names[*ret])"),
   keys_of_a_tokenizer_are_skipped=("clv_code clv_token_file_read_keys(", "? refuse_unknown_key(f, object_name, at, err)", "? clv_json_skip(&f->j, err)"),
   keys_of_a_tokenizer_may_be_missing=("clv_code clv_token_file_read_keys(", "if (!keys[i].is_optional &&", "if (i > MAX_OBJECT_KEYS && !keys[i].is_optional &&"))
of("master/tokens/normalizer.c", TOKENS,
   marks_are_mapped_alone=("static size_t find_cluster_end(", "while (at < p->n &&", "while (at < p->n && at > p->n &&"),
   strip_takes_both_ends=("static clv_code strip_spaces(", "if (s->flags[STRIPS_LEFT])", "if (s)"))
of("master/tokens/charsmap.c", TOKENS,
   any_text_of_a_table_is_good=("static const char *check_subtree(", "if (!is_valid_replacement(", "if (depth > 9 && !is_valid_replacement("))
of("master/tokens/pre_tokenizer.c", TOKENS,
   each_piece_has_a_metaspace=("static clv_code put_metaspaces(", "s->choice == PREPEND_FIRST && piece.is_first", "s->choice == PREPEND_FIRST"),
   matches_join_matches=("static bool must_merge(", "return is_match && !p->is_match;", "return is_match;"),
   bytes_may_be_cut_again=("static clv_code read_step(", "if (clv_pre_tokenizer_is_byte_level(t))", "if (false)"))
of("master/tokens/added_tokens.c", TOKENS,
   an_added_token_is_part_of_a_word=("bool clv_added_token_find(", "if (e->flags & CLV_ADDED_SINGLE_WORD &&", "if (e->flags & 128 &&"))
of("master/tokens/added_tokens.c", TOKENS,
   white_space_is_stripped_again_and_again=("static size_t find_space_end(", "if (end >= m->space_begin && end < m->space_end)", "if (end > len)"))
of("master/tokens/added_file.c", TOKENS,
   an_added_token_is_looked_for_as_it_is_written=("static clv_code add_normalised_token(", "if (clv_tokenizer_normalize(f->t, &p, err) != CLV_OK)", "if (clv_tokenizer_normalize(f->t, &(clv_codepoints){0}, err) != CLV_OK)"),
   any_id_of_an_added_token_is_taken=("static clv_code finish_added_tokens(", "if (is_wrong)", "if (is_wrong && expected_id < 0)"))
of("master/data/objective.c", "tests/unit/data/test_objective",
   ends_are_hidden_too=("static int64_t find_label(", "is_text_token(ds, i, length) ? row[i]", "is_text_token(ds, i, length) || i < length ? row[i]"),
   a_label_is_its_own_token=("static int64_t find_label(", "i + 1 < length ? row[i + 1]", "i + 1 < length ? row[i]"),
   each_epoch_hides_the_same=("void clv_dataset_mask_tokens(", "draw ? draw->epoch : UINT64_MAX", "draw ? 0 : UINT64_MAX"),
   a_record_may_hide_nothing=("void clv_dataset_mask_tokens(", "n_masked ? n_positions : draw_one_position(ds, &key, labels, n_positions)", "n_masked ? n_positions : draw_one_position(ds, &key, labels, n_positions) + n_positions"))
of("master/run/run_classes.c", "tests/unit/run/test_records",
   a_class_may_come_twice=("static clv_code check_names_unique(", "strcmp(sorted[i - 1], sorted[i]) == 0", "strcmp(sorted[i - 1], sorted[i]) > 0"))
PAGES = "tests/unit/data/test_pages"
of("master/data/page_lines.c", PAGES,
   a_box_may_end_before_it_begins=("static clv_code read_box(", "box[0] <= box[2] && box[1] <= box[3]", "box[0] <= CLV_MAX_BOX_COORDINATE"),
   words_need_no_box_each=("static clv_code check_line(", "if (l->boxes.n != 4 * n_words)", "if (l->boxes.n > 4 * n_words)"),
   lines_need_no_labels=("static uint32_t get_required_keys(", "if (label_kind == CLV_PAGES_WORD_LABELS)", "if (false && label_kind == CLV_PAGES_WORD_LABELS)"))
of("master/data/pages.c", PAGES,
   windows_without_labels_stay=("static clv_code add_window(", "has_word_labels && !has_label(w, row)", "has_word_labels && !has_label(w, row) && !w->n"),
   an_order_of_classes_takes_others=("static clv_code add_listed_names(", "r->names.is_closed = o->n_labels > 0;", ";"))
of("master/data/class_names.c", PAGES,
   classes_stand_as_they_came=("clv_code clv_name_table_list(", "s->is_closed ? number : (int32_t)i", "number"))
of("master/plan/data_check.c", "tests/net/training/test_text.py",
   any_tokenizer_fits=("static clv_code check_tokenizer(", "vocab_size <= node->attrs.rows", "vocab_size"))
DOCUMENTS = "tests/unit/documents/test_documents"
of("master/documents/child_process.c", DOCUMENTS,
   a_child_prints_without_end=("static clv_code read_pipes(", "out->failed || out->len > l->max_output_bytes", "out->failed"),
   a_child_has_all_memory=("static void set_limits(", "set_limit(RLIMIT_AS, l->max_memory_bytes, l->max_memory_bytes);", ";"),
   a_child_writes_files=("static void set_limits(", "set_limit(RLIMIT_FSIZE, 0, 0);", ";"),
   a_childs_children_stay=("static void end_child(", "kill(-r->pid, SIGKILL);", ";"),
   a_silent_child_has_all_the_time=("static clv_code wait_for_exit(", "if (clv_now_ns() > deadline_ns)", "if (clv_now_ns() > deadline_ns + 120000000000ull)"))
of("master/documents/read.c", DOCUMENTS,
   a_list_of_files_is_taken_for_an_image=("static clv_code find_file_kind(", 'return clv_fail(err, CLV_INVALID, "%s: not a PDF', 'return CLV_OK; return clv_fail(err, CLV_INVALID, "%s: not a PDF'))
of("master/documents/bbox.c", DOCUMENTS,
   pages_keep_their_size=("static clv_code read_page(", "if (is_rotated(r, g->n_pages))", "if (false && is_rotated(r, g->n_pages))"),
   skew_pages_are_turned=("static clv_code check_rotations(", "rotations->data[i] == PAGE_ASKEW", "false"))
of("master/documents/windows.c", DOCUMENTS,
   shared_words_are_labelled_twice=("static void fill_row(", "i >= labelled_range.from && i < labelled_range.to ? labels : NULL", "labelled_range.to ? labels : NULL"),
   every_piece_has_the_label=("static void put_page_token(", "labels && is_first ?", "labels && (is_first || labels) ?"))
of("common/base/json/json.c", "tests/unit/json/test_json",
   lists_go_as_deep_as_they_like=("clv_code clv_json_open(", "j->depth == CLV_JSON_DEPTH", "false"),
   a_column_is_a_byte=("clv_code clv_json_fail(", "((j->text[i] & 0xc0) != 0x80)", "1"))

# ---- sums of chunks ------------------------------------------------------------------------------
of("common/net/link/crc.c", "tests/unit/link/test_crc",
   a_chunk_counts_wherever_it_is=("uint32_t clv_crc32c_shift", "crc = multiply_polynomials(crc, powers[k % POWERS]);", "crc = multiply_polynomials(crc, powers[0]);"))

# ---- references ----------------------------------------------------------------------------------
PROGRAMS, CELLS = "faults/references --runs 3000", "tests/unit/reference/test_tables"
of("common/engine/reference/rref_tables.c", PROGRAMS,
   a_parent_goes_before_the_owner_knows_its_child=(
       "[RREF_HANDLE_NONE] = {", "DO(HANDLE_JOINING, RREF_SEND_FORK,", "DO(HANDLE_JOINING, RREF_SEND_FORK, RREF_SEND_ACCEPT,"),
   a_handle_goes_before_its_owner_has_answered=(
       "[RREF_HANDLE_JOINING] = {", "DO(HANDLE_JOINING_RELEASED, RREF_CANCEL_FETCH)", "DO(HANDLE_JOINED_RELEASED, RREF_CANCEL_FETCH, RREF_CHECK)"),
   an_early_fetch_is_taken_and_forgotten=("[RREF_FORK_NONE] = {", "DO(FORK_NONE, RREF_PARK)", "STAY(FORK_NONE)"),
   a_fetch_that_waits_for_the_value_is_forgotten=("[RREF_FORK_ASKED] = {", "DO(FORK_KNOWN, RREF_SEND_VALUE)", "STAY(FORK_KNOWN)"),
   an_early_fork_is_refused=("[RREF_ENTRY_NONE] = {", "DO(ENTRY_NONE, RREF_PARK)", "REFUSE(NOT_FOUND)"),
   a_value_is_kept_from_who_asked=(
       "[RREF_ENTRY_EXPECTED] = {", "DO(ENTRY_VALUE, RREF_STORE_VALUE, RREF_SERVE_FORKS)", "DO(ENTRY_VALUE, RREF_STORE_VALUE)"),
   a_failure_is_kept_from_who_asked=(
       "[RREF_ENTRY_EXPECTED] = {", "DO(ENTRY_FAILURE, RREF_STORE_FAILURE, RREF_SERVE_FORKS)", "DO(ENTRY_FAILURE, RREF_STORE_FAILURE)"),
   who_has_joined_does_not_release_its_parent=(
       "[RREF_HANDLE_JOINING] = {", "RREF_NOTE_JOINED, RREF_SEND_ACCEPT,", "RREF_NOTE_JOINED,"),
   a_released_handle_stays=("[RREF_HANDLE_JOINED] = {", "RREF_CANCEL_FETCH, RREF_CHECK", "RREF_CANCEL_FETCH"),
   the_owner_is_not_told_that_a_handle_goes=(
       "[RREF_HANDLE_JOINED_RELEASED] = {", "[RREF_HANDLE_HAS_NO_WAITERS] = DO(HANDLE_LEAVING, RREF_SEND_DELETE)", "[RREF_HANDLE_HAS_NO_WAITERS] = STAY(HANDLE_LEAVING)"),
   an_accepted_child_stays=("[RREF_CHILD_TAKEN] = {", "[RREF_CHILD_ACCEPTED] = DO(CHILD_NONE, RREF_FREE)", "[RREF_CHILD_ACCEPTED] = STAY(CHILD_TAKEN)"),
   a_fork_stays_when_its_user_goes=("[RREF_FORK_KNOWN] = {", "[RREF_FORK_DELETED] = DO(FORK_NONE, RREF_FREE)", "[RREF_FORK_DELETED] = STAY(FORK_KNOWN)"))
of("common/engine/reference/rref_tables.c", CELLS,
   a_lost_message_is_not_sent_again=("[RREF_POST_SENT] = {", "[RREF_POST_DUE] = DO(POST_SENT, RREF_TRANSMIT)", "[RREF_POST_DUE] = STAY(POST_SENT)"),
   forks_before_their_entry_are_forgotten=("[RREF_ENTRY_NONE] = {", "RREF_UNPARK_FORKS,", ""),
   what_stood_behind_the_window_stays_there=("[RREF_POST_WAITING] = {", "DO(POST_SENT, RREF_TRANSMIT)", "STAY(POST_SENT)"),
   a_refused_handle_is_gone_before_who_passed_it_knows=(
       "[RREF_HANDLE_JOINING_RELEASED] = {", "[RREF_HANDLE_JOIN_REFUSED] = DO(HANDLE_ENDED, RREF_CANCEL_OWNER_POSTS, RREF_SEND_ACCEPT, RREF_REPORT_JOINED, RREF_CHECK)",
       "[RREF_HANDLE_JOIN_REFUSED] = DO(HANDLE_ENDED, RREF_CANCEL_OWNER_POSTS, RREF_CHECK, RREF_SEND_ACCEPT, RREF_REPORT_JOINED)"),
   a_handle_is_used_before_its_owner_is_asked=(
       "[RREF_HANDLE_NONE] = {", "RREF_SEND_FORK, RREF_REPORT_USED", "RREF_REPORT_USED, RREF_SEND_FORK"),
   FORK_is_posted_twice=("[RREF_HANDLE_NONE] = {", "RREF_SEND_FORK, RREF_REPORT_USED", "RREF_SEND_FORK, RREF_SEND_FORK, RREF_REPORT_USED"),
   a_value_is_wanted_before_who_came_early_is_served=(
       "[RREF_ENTRY_NONE] = {", "RREF_UNPARK_FORKS, RREF_REPORT_CREATE", "RREF_REPORT_CREATE, RREF_UNPARK_FORKS"),
   a_value_is_stored_twice=(
       "[RREF_ENTRY_VALUE] = {", "[RREF_ENTRY_SETTLED] = STAY(ENTRY_VALUE)", "[RREF_ENTRY_SETTLED] = DO(ENTRY_VALUE, RREF_STORE_VALUE)"),
   a_FETCH_outlives_its_handle=(
       "[RREF_HANDLE_JOINED] = {", "RREF_CANCEL_FETCH, RREF_CHECK", "RREF_CHECK"),
   an_owner_is_asked_soon_again_and_again=("[RREF_HANDLE_JOINED] = {", "RREF_REFETCH_LATER", "RREF_REFETCH_SOON"),
   what_was_wanted_of_a_lost_owner_never_comes=(
       "[RREF_HANDLE_JOINED] = {", "[RREF_HANDLE_OWNER_LOST] = DO(HANDLE_FAILED, RREF_CANCEL_OWNER_POSTS, RREF_SEND_ACCEPT, RREF_REPORT_FAILURE)",
       "[RREF_HANDLE_OWNER_LOST] = DO(HANDLE_FAILED, RREF_CANCEL_OWNER_POSTS, RREF_SEND_ACCEPT)"),
   who_joins_a_lost_owner_waits_for_ever=(
       "[RREF_HANDLE_JOINING] = {",
       "[RREF_HANDLE_OWNER_LOST] = DO(HANDLE_FAILED, RREF_CANCEL_OWNER_POSTS, RREF_SEND_ACCEPT, RREF_REPORT_JOINED, RREF_REPORT_FAILURE)",
       "[RREF_HANDLE_OWNER_LOST] = STAY(HANDLE_JOINING)"),
   an_entry_goes_in_silence=("[RREF_ENTRY_VALUE] = {", "DO(ENTRY_NONE, RREF_REPORT_FREED, RREF_FREE)", "DO(ENTRY_NONE, RREF_FREE)"))
of("common/engine/reference/rref_post.c", PROGRAMS,
   repeats_are_handled_again=("bool clv_rref_is_new_message", "return !has_answer;", "return true;"),
   messages_are_sent_once=("static clv_code transmit", "post->due_ns = t->now_ns + post->wait_ns;", "post->due_ns = UINT64_MAX;"))
of("common/engine/reference/rref_post.c", CELLS,
   of_several_answers_that_wait_one_is_sent=("static void owe_ack", "p->ack_last = is_first_owed ?", "p->ack_first = p->ack_last = true ?"))
of("common/engine/reference/rref_record.c", CELLS,
   a_record_goes_although_a_result_is_to_be_made_from_it=("void clv_rref_record_drop", "if (!r->n_queued_results) clv_slab_recycle(s, r);", "clv_slab_recycle(s, r);"))
of("common/engine/reference/rref.c", PROGRAMS,
   who_is_silent_is_never_given_up=("static void tick_peer", "if (t->now_ns - p->last_message_ns > t->o.lease_ns) drop_lost_peer(t, p);", ""),
   nobody_renews=("static void renew_if_due", "if (!needs_lease ||", "if (true ||"))
of("common/engine/reference/rref_user.c", PROGRAMS,
   an_owners_own_early_handle_counts_as_known=("int clv_rref_on_use", "m->owner == from && !m->is_before_join", "m->owner == from"))
of("common/engine/reference/rref_owner.c", PROGRAMS,
   the_key_is_not_asked_for=("int clv_rref_on_fork", "e && e->key != m->key", "false"),
   whose_fork_it_is_does_not_matter=("static clv_rref_fork *find_fork", "f->node == node &&", ""),
   an_error_is_not_stored=("static clv_code store_failure", "clv_rref_failure_copy(given->failure)", "clv_rref_failure_copy(clv_rref_failure_of_code(0))"))

# ---- links ---------------------------------------------------------------------------------------
LINK_CELLS, LINKS = "tests/unit/link/test_tables", "simulate/links --runs 300"
of("common/net/link/link_state.c", LINK_CELLS,
   a_link_is_open_with_its_first_lane=("static clv_code attach", "if (++l->n_attached == l->n_lanes)", "if (++l->n_attached)"),
   a_lane_joins_twice=("static clv_code join_lane", "l->lanes[n->lane_index].has_stream ||", ""),
   a_link_that_attaches_does_not_end=("static state_action *const actions", "[CLV_LINK_ATTACHING] = {join_lane, attach_lane, refuse_event, end_link,", "[CLV_LINK_ATTACHING] = {join_lane, attach_lane, refuse_event, ignore_event,"),
   an_end_is_said_again=("static state_action *const actions", "[CLV_LINK_ENDING] = {refuse_event, ignore_event, refuse_event, ignore_event, remove_lane}", "[CLV_LINK_ENDING] = {refuse_event, ignore_event, refuse_event, end_link, remove_lane}"),
   a_link_is_gone_before_its_last_lane=("static clv_code remove_lane", "--l->n_lanes_with_stream == 0", "--l->n_lanes_with_stream == 1"))
of("common/net/link/lane.c", LINK_CELLS,
   credit_comes_on_any_lane=("[CLV_LANE_BULK] = {", "[CREDIT] = refuse_on_bulk_lane", "[CREDIT] = on_credit"),
   packets_come_on_any_lane=("[CLV_LANE_BULK] = {", "[PACKET] = refuse_on_bulk_lane", "[PACKET] = on_packet"),
   the_first_frame_is_any=("[CLV_LANE_ACCEPTED] = {", "[PING] = refuse_before_attach", "[PING] = on_ping"))
of("worker/store/caches.c", "tests/unit/store/test_caches",
   a_row_number_stands_in_a_text=("static clv_code check_rows(", "is outside 0..%llu\", i,", "is outside 0..%llu\", (size_t)rows[i],"))
of("common/net/link/reassembly.c", LINK_CELLS,
   a_second_head_is_taken=("static partial_action *const actions", "[CLV_PARTIAL_HEADED] = {refuse_second_tensor_of_transfer,", "[CLV_PARTIAL_HEADED] = {set_head,"),
   bytes_come_twice=("static clv_code claim_span", "previous_span && previous_span->to > from", "false"))
of("common/net/link/frame_writer.c", LINKS,
   a_chunk_is_sent_without_its_ping=("clv_code clv_frame_writer_send_with_preceding", "if (code == CLV_OK && before)", "if (code == CLV_OK && !f)"))
of("common/net/link/lane.c", LINKS,
   a_pong_waits_without_end=("static clv_code handle_message", "if (is_attached && ln->lane_index) clv_frame_writer_flush(ln->link->writer);", ""))
of("common/net/wire/payload.c", "tests/unit/wire/test_frame",
   bytes_before_a_cache_line_are_lost=("static void copy_past_cache", "memcpy(dst, src, before);", ""))
of("common/net/link/recv_window.c", LINKS,
   credit_is_granted_twice=("static uint64_t take_due_credit", "r->unsent_credit = 0;", ""),
   the_last_credit_is_held_back=("static uint64_t take_due_credit", "!are_all_bytes_free &&", ""))

# ---- the engine ----------------------------------------------------------------------------------
ENGINE_CELLS, ENGINE_WORK, WAKES = (f"tests/unit/engine/test_{name}" for name in ("tables", "work", "inbox"))
of("common/engine/context_work.c", ENGINE_WORK,
   the_last_work_runs_first=("static void link_list", "(*at)->first->number < l->first->number", "(*at)->first->number > l->first->number"),
   two_works_of_a_module_at_once=("clv_work *clv_work_take", "while (l && !are_modules_idle(e, l->first)) l = l->next;", ""),
   a_module_stays_busy=("void clv_work_note_end", "set_modules_busy(e, w, false);", ""))
of("common/engine/inbox.c", "simulate/simulate --runs 20",
   an_end_leaves_the_thread_asleep=("void clv_inbox_post_ended_work", "b->has_urgent_item = true;", ""))
EXECUTOR = "tests/unit/engine/test_executor"
of("common/engine/inbox.c", EXECUTOR,
   an_end_hides_the_one_behind_it=("void clv_inbox_post_ended_work", "b->ended_work_end = &w->next;", ""))
of("common/engine/node_links.c", EXECUTOR,
   work_never_fails=("void clv_node_work_ended", "w->code = code;", "w->code = CLV_OK;"),
   why_work_failed_is_lost=("void clv_node_work_ended", "copy_failure(why)", "NULL"))
of("common/engine/node_frames.c", "simulate/simulate --runs 20",
   what_an_end_makes_ready_stays=("void clv_node_handle_work_end", "run_engine(n, &why)", "CLV_OK"))
OVERTAKEN = "tests/unit/engine/test_overtaken"
of("common/engine/context_queue.c", OVERTAKEN,
   a_change_overtakes_a_backward=("static void make_change_ready", "k->next_ready = NULL;", "clv_work_enqueue(e, &k->work, WORK_CHANGE, NULL, k->entries ? k->entries->module : CLV_MODULE_ALL);\n  if (k) return;"))
of("common/engine/context_step.c", OVERTAKEN,
   a_step_that_has_begun_is_not_counted=("static clv_code finish_step", "if (code == CLV_OK && s->is_computing)", "if (code == CLV_OK && s->is_computing && ctx->state == CONTEXT_OPEN)"))
of("common/engine/context_forward.c", OVERTAKEN,
   statistics_are_kept_of_a_call_without_memory=("static clv_code prepare_forward(", "CLV_TRY(clv_call_prepare_forward(e, c, err));\n  request_buffer_save(e, c);", "request_buffer_save(e, c);\n  CLV_TRY(clv_call_prepare_forward(e, c, err));"))
of("common/engine/context_wake.c", OVERTAKEN,
   an_end_rests_while_a_call_waits=("static bool can_end_frame_wait", "if (e->counts.calls_waiting) return false;", ""),
   an_answer_rests=("static bool can_apply_frame_wait", "c && c->gradients && can_steps_wait(", "c && can_steps_wait("))
of("common/engine/context_table.c", ENGINE_CELLS,
   a_context_that_ends_has_work=("[CONTEXT_CLOSING] = {", "[CONTEXT_WORK_READY] = DO(IGNORE, CONTEXT_CLOSING)", "[CONTEXT_WORK_READY] = RECORD(CONTEXT_CLOSING)"),
   a_failed_context_takes_gradients=("[CONTEXT_FAILED] = {", "[CONTEXT_GRADIENT] = DO(IGNORE, CONTEXT_FAILED)", "[CONTEXT_GRADIENT] = RECORD(CONTEXT_FAILED)"),
   an_ended_context_opens_again=("[CONTEXT_ENDED] = {", "[CONTEXT_CALL] = DO(COUNT, CONTEXT_ENDED)", "[CONTEXT_CALL] = RECORD(CONTEXT_OPEN)"),
   a_second_end_is_not_answered=("[CONTEXT_ENDED] = {", "DO(REPEAT, CONTEXT_ENDED)", "DO(IGNORE, CONTEXT_ENDED)"),
   an_aborted_context_is_held=("[CONTEXT_OPEN] = {", "[CONTEXT_ABORT] = DO(END, CONTEXT_ENDED)", "[CONTEXT_ABORT] = RECORD(CONTEXT_ENDED)"),
   a_value_is_made_twice=("[VALUE_PENDING] = {", "[VALUE_CALL_ADDED] = REFUSE(CLV_EXISTS, exists_text)", "[VALUE_CALL_ADDED] = RECORD(VALUE_PENDING)"),
   a_value_that_is_here_is_not_given=("[VALUE_LEAF] = {", "[VALUE_DELIVERY_ADDED] = DO(GIVE, VALUE_LEAF)", "[VALUE_DELIVERY_ADDED] = RECORD(VALUE_LEAF)"),
   a_value_from_elsewhere_replaces_a_made_one=("[VALUE_COMPUTED] = {", "REFUSE(CLV_PRECONDITION, computed_text)", "DO(SETTLE, VALUE_LEAF)"),
   a_value_that_is_here_cannot_be_kept=("[VALUE_LEAF] = {", "[VALUE_KEPT] = DO(GIVE, VALUE_LEAF),", ""),
   a_value_that_is_awaited_cannot_be_kept=("[VALUE_AWAITED] = {", "[VALUE_KEPT] = RECORD(VALUE_AWAITED),", ""),
   a_value_comes_and_nobody_gets_it=("[VALUE_AWAITED] = {", "[VALUE_RECEIVED] = DO(SETTLE, VALUE_LEAF)", "[VALUE_RECEIVED] = RECORD(VALUE_AWAITED)"),
   a_spent_call_runs_backward_again=("[CALL_SAVED_FREED] = ", "REFUSE(CLV_PRECONDITION, spent_text)", "DO(BEGIN, CALL_BACKWARD)"),
   who_follows_a_spent_call_waits=("[CALL_SAVED_FREED] = ", "DO(IGNORE, CALL_SAVED_FREED)", "RECORD(CALL_SAVED_FREED)"),
   a_retained_call_is_spent=("[CALL_WEIGHT_GRAD] = {", "DO(SETTLE, CALL_RETAINED)", "DO(END, CALL_SAVED_FREED)"),
   a_gradient_behind_its_call_is_taken=("[PASS_ACTIVE] = {", "[PASS_GRADIENT_OTHER] = REFUSE(CLV_PRECONDITION, after_text)", "[PASS_GRADIENT_OTHER] = RECORD(PASS_ACTIVE)"),
   a_step_is_taken_during_a_pass=("[PASS_ACTIVE] = {", "[PASS_STEP] = REFUSE(CLV_PRECONDITION, in_progress_text)", "[PASS_STEP] = RECORD(PASS_ACTIVE)"),
   a_step_is_reverted_by_anybody=("[STEP_OPEN] = {", "[STEP_NOT_REVERTED] = DO(IGNORE, STEP_OPEN)", "[STEP_NOT_REVERTED] = DO(GIVE, STEP_FINAL)"),
   a_step_is_reverted_behind_other_work=("[STEP_OPEN] = {", "[STEP_OTHER_WORK] = DO(END, STEP_FINAL)", "[STEP_OTHER_WORK] = RECORD(STEP_OPEN)"),
   a_step_is_reverted_twice=("[STEP_OPEN] = {", "[STEP_REVERTED] = DO(GIVE, STEP_FINAL)", "[STEP_REVERTED] = DO(GIVE, STEP_OPEN)"),
   a_final_step_can_be_taken_back=("[STEP_FINAL] = {", "[STEP_TAKEN_FINAL] = DO(IGNORE, STEP_FINAL)", "[STEP_TAKEN_FINAL] = RECORD(STEP_OPEN)"),
   a_pass_takes_prepares_while_it_runs=("[PASS_ACTIVE] = {", "[PASS_PREPARE_SAME] = REFUSE(CLV_PRECONDITION, in_progress_text)", "[PASS_PREPARE_SAME] = RECORD(PASS_ACTIVE)"))
of("common/engine/context_pass.c", ENGINE_WORK,
   gradients_are_summed_as_they_come=("clv_code clv_pass_add_gradient", "((*at)->phase == phase && (*at)->order < order)", "(*at)->phase == phase"))
of("common/engine/context.c", ENGINE_CELLS,
   what_cannot_be_passes=("const clv_cell *clv_contexts_on_event", "e->impossible_event = why;", ""))
of("common/engine/context_run.c", ENGINE_CELLS,
   a_context_lives_after_what_cannot_be=("static clv_code report_impossible_event", "clv_contexts_fail_context(e, e->impossible_event_context, CLV_MODULE_ALL, err)", "true"),
   what_cannot_be_of_nobody_is_not_said=("static clv_code report_impossible_event", "has_failed_context ? CLV_OK : err->code", "has_failed_context ? CLV_OK : CLV_OK"))
of("common/engine/context_work.c", ENGINE_CELLS,
   work_of_a_context_that_ends_is_listed=("void clv_work_enqueue(", "if (ctx && clv_context_on_event(e, ctx, CONTEXT_WORK_READY)->action != CELL_RECORD) return;", ""),
   work_ends_that_has_not_begun=("void clv_work_note_end", "if (!apply_event(e, w, w->ctx, WORK_ENDS)) return;", ""))
of("common/engine/context_pass.c", ENGINE_CELLS,
   a_call_is_named_again_while_it_sums=("static bool is_part_of_pass", "|| c->call_state == CALL_WEIGHT_GRAD", ""),
   gradients_count_for_any_phase=("static uint32_t count_received_gradients", "n += k->phase == phase", "n++"))
of("common/engine/context_order.c", ENGINE_CELLS,
   a_position_runs_before_it_is_due=("bool clv_order_is_due", "p->position == ctx->positions_done + 1", "p->position > ctx->positions_done"))
of("common/engine/context_wake.c", WAKES,
   a_fact_that_makes_nothing_ready_wakes=("static bool can_gradient_frame_wait", "return !v || !v->producer || !v->producer->is_in_pass;", "return false;"),
   facts_that_meet_do_not_wake=("static const uint64_t kinds_ready_together", "[CLV_PREPARE] = CLV_KIND_BIT(CLV_GRADIENT)", "[CLV_PREPARE] = 0"))
of("common/engine/node_links.c", "tests/unit/engine/test_master",
   what_cannot_leave_fails_elsewhere_alone=("void clv_node_send(", "if (clv_contexts_fail_context(n->contexts, c.context, c.module, &err)) return;", "if (code == CLV_OK) return;"))
CONNECTIONS = "tests/unit/link/test_reconnects"
of("common/net/link/link_state.c", CONNECTIONS,
   an_older_connection_is_taken=("static clv_code join_again", "n->connection_number <= s->connection_number", "n->connection_number < s->connection_number"),
   the_earlier_connection_need_not_end=("static clv_code join_again", "n->must_wait = s->has_stream;", "n->must_wait = false;"))
of("common/net/link/link_state.c", CONNECTIONS,
   an_outage_never_ends=("static void count_outage", "l->outage_since_ns = 0;", ""),
   a_lost_connection_is_attached=("static bool has_left_lane", "return !s->has_stream ||", "return false &&"))
of("common/net/link/lane_log.c", CONNECTIONS,
   all_is_sent_again=("clv_code clv_lane_log_continue_after", "CLV_TRY(clv_lane_log_remove_acked(g, received, removed, err));", "if (received > g->n_sent) return CLV_INVALID;"),
   nothing_is_sent_again=("clv_code clv_lane_log_continue_after", "g->next_to_pass = g->first;", ""))
of("common/net/link/lane.c", CONNECTIONS,
   credit_is_granted_again=("static clv_code on_attached", "if (is_first && ln->lane_index == 0)", "if (ln->lane_index == 0)"),
   a_lost_link_ends=("static bool may_reconnect", "return code == CLV_UNAVAILABLE ||", "return"))
of("master/api/core/runtime.c", "tests/net/operations/test_outages.py silence_ends_nothing",
   links_between_workers_do_not_stop_the_clock=("static bool is_any_link_mending", "reports_outage(rt, p) ||", "false ||"))
of("master/api/core/failures.c", "tests/net/hostile/test_hostile_answers.py lost_link_between_workers_is_a_loss_whatever_its_code",
   a_restarted_neighbour_is_not_lost=("clv_code api_get_loss_code", "code == CLV_NOT_FOUND ||", ""))
of("common/base/library_files.c", "tests/unit/base/test_base",
   openssl_ends_before_its_users=("static void start_openssl", "OPENSSL_INIT_NO_ATEXIT |", "0 |"))
of("worker/service/session_links.c", "tests/net/operations/test_outages.py silence_ends_nothing",
   links_between_workers_are_not_reported=("static uint32_t count_peers_waiting_for_connections", "return n;", "return 0;"))
of("master/api/core/runtime.c", "tests/net/hostile/test_hostile_worker.py reported_outage_stops_the_clock_for_the_lease",
   a_reported_outage_has_no_end=("static bool reports_outage", "now_ns - p->mending_since_ns < rt->config->limits.lease_ms", "0 < rt->config->limits.lease_ms"))
of("common/net/rpc/stream.c", "tests/unit/rpc/test_stream",
   a_reason_to_end_an_idle_stream_looks_like_a_loss=("void clv_rpc_stream_cancel", "!stream->is_server && stream->send_state == SEND_IDLE && code != CLV_CANCELLED;", "false;"))
of("worker/service/service.c", "tests/net/operations/test_daemon.py sigterm_lets_running_sessions_finish",
   draining_waits_for_masters_that_left=("static void end_if_detached(", "now_ms - x->detached_since_ms >= DETACHED_MS", "false"),
   draining_does_not_wait_for_a_master=("static void end_if_detached(", "now_ms - x->detached_since_ms >= DETACHED_MS", "now_ms"))
of("master/run/run_recover.c", "tests/net/operations/test_outages.py worker_that_restarts_while_resume_connects_is_waited_for",
   a_worker_that_restarts_while_connecting_ends_the_run=("static bool may_be_temporary", "return clv_run_lock_check_newest(r->lock, &ignored_err) == CLV_OK;", "return clv_run_lock_check_newest(r->lock, &ignored_err) != CLV_OK;"))
of("common/net/link/redial.c", CONNECTIONS,
   a_refusal_waits_for_the_lease=("static void end_if_refused_too_long", "!r->refused_since_ns ||", "r->refused_since_ns ||"),
   the_last_redial_is_not_at_the_end=("static void find_due_redials", "CLV_MIN(r->next_redial_ns, last_redial_ns)", "r->next_redial_ns"),
   no_answer_is_waited_for_without_end=("static void find_late_lane", "d->late_lanes[d->n_late_lanes++] = index;", ""))
of("common/net/link/link_rpc.c", "tests/net/operations/test_pauses.py pause_over_the_lease_ends_the_run",
   a_link_is_silent_for_the_peer_timeout=("clv_code clv_link_open", "if (options->lease_ms)", "if (!options)"))
of("common/net/link/received.c", LINKS,
   messages_are_not_counted=("uint64_t clv_link_n_received", "__atomic_load_n(&l->lanes[index].n_received, __ATOMIC_RELAXED)", "0"))
of("common/net/link/dial.c", "tests/unit/link/test_dial",
   a_lane_that_is_taken_no_more_is_the_reason=("clv_code clv_link_dial_lane", "if (code != CLV_OK) code = replace_by_end_reason(l, code, err);", ""))

# ---- peers of the protocol before ----------------------------------------------------------------
WIRE_SESSION, OLD_CLIENT = "tests/unit/wire/test_session", "tests/net/contexts/test_client.py "
OLD_WORKER = "tests/net/hostile/test_hostile_worker.py "
of("common/net/wire/hello.c", WIRE_SESSION,
   protocol_8_is_refused=("clv_code clv_about_decode", "from->protocol < CLV_WIRE_PROTOCOL_MIN ||", "from->protocol < CLV_WIRE_PROTOCOL ||"),
   protocol_7_is_accepted=("clv_code clv_about_decode", "from->protocol < CLV_WIRE_PROTOCOL_MIN ||", ""),
   hello_is_said_once=("clv_code clv_wire_hello_exchange", "if (code != CLV_UNIMPLEMENTED) return code;", "return code;"))
of("common/net/link/frame_writer.c", CONNECTIONS,
   an_old_peer_fills_the_log=("void clv_frame_writer_record_accepted", "if (o->forgets_accepted_messages)", "if (o->forgets_accepted_messages && !n)"))
of("common/net/link/received.c", CONNECTIONS,
   an_old_peer_gets_acks=("clv_code clv_link_record_received", "if (!l->lease_ms) return CLV_OK;", ""),
   an_old_peer_may_ack=("clv_code clv_link_handle_ack", "if (!l->lease_ms)", "if (!l)"))
of("worker/service/session_links.c", OLD_CLIENT + "client_of_protocol_8_meets_a_worker_of_protocol_8",
   a_worker_mends_links_of_an_old_master=("static uint64_t get_link_lease_ms", "clv_wire_protocol_has_acks(protocol) ?", "protocol ?"))
of("worker/service/session_links.c", "tests/net/contexts/test_context_life.py link_to_a_peer_of_protocol_8_has_no_acks",
   a_worker_mends_links_of_an_old_peer=("clv_code clv_session_find_link", "clv_service_protocol(v, uri)", "s->owner_protocol"))
of("worker/service/methods.c", OLD_CLIENT + "status_reply_has_the_protocol_that_the_caller_reads",
   an_old_status_cannot_read_a_new_worker=("static clv_code on_status", "r.newest_protocol < CLV_WIRE_PROTOCOL ?", "r.newest_protocol > CLV_WIRE_PROTOCOL ?"))
of("master/api/core/links.c", OLD_WORKER + "worker_of_protocol_8_trains_without_acks",
   a_master_mends_links_of_an_old_worker=("cleave_status api_open_link", "clv_wire_protocol_has_acks(p->protocol_version) ?", "p->protocol_version ?"))

# ---- messages of several frames ------------------------------------------------------------------
of("common/net/link/frame_writer.c", CONNECTIONS,
   more_is_enclosed_than_a_receiver_takes=("static bool hold_frame_back", "o->n_held_frames == CLV_WIRE_BUNDLED ||", ""))
of("common/net/wire/frame_decode.c", "tests/unit/wire/test_frame_hostile",
   frames_before_one_are_not_counted=("static clv_code read_preceding_frame", "if (d->preceding_frames->n_frames == CLV_WIRE_BUNDLED)", "if (d->preceding_frames->n_frames == 2 * CLV_WIRE_BUNDLED)"),
   a_frame_before_one_has_some_before_it=("clv_code clv_frame_decode_preceding", "decoder d = {.limits = limits};", "clv_bundle none = {0};\n  decoder d = {.limits = limits, .preceding_frames = &none};"))

SPARED = "tests/unit/engine/test_spared"
of("common/engine/context_retain.c", SPARED,
   a_kept_value_goes_with_its_context=("static bool is_needed", "return d || v->needed_by_peer;", "return false && (d || v->needed_by_peer);"),
   what_another_node_needs_goes_with_its_context=("static bool is_needed", "return d || v->needed_by_peer;", "return d;"),
   all_that_is_to_come_is_spared=("static bool is_needed", "return d || v->needed_by_peer;", "return true || d;"),
   inputs_of_a_spared_call_are_given_up=("uint32_t clv_context_mark_retained", "retain_inputs(e, v->producer, &unvisited);", ""),
   a_spared_call_waits_for_its_position=("static void unlink_from_waiters(", "remove_from_order(e, v->producer);", ""),
   a_spared_call_waits_for_a_backward=("static void unlink_from_waiters(", "remove_from_followers(e, v->producer);", ""))
of("common/engine/context_free.c", SPARED,
   a_failure_is_not_the_references=("void clv_value_free(", "v->ctx->failure ? v->ctx->failure : &clv_shared_err_context_ended", "&clv_shared_err_context_ended"),
   what_a_call_on_its_way_takes_goes_before=("void clv_value_free_if_dropped", "&& !is_retained_for_announced_call(v)", ""))
of("common/engine/context_end.c", SPARED,
   statistics_of_spared_calls_stay=("static void free_all_but_retained(", "c->restores_buffers = end->has_commit && !end->commit.applies_step;", ""),
   who_waits_for_the_last_end_hears_nothing=("void clv_context_abort(", "if (owes_final_ended) send_final_ended(e, c);", "(void)owes_final_ended;"))
of("common/engine/context_call.c", SPARED,
   a_leaf_behind_the_end_stays=("static clv_code get_arg_value(", "(*ret)->is_retained = (*ret)->is_dropped = true;", ""))
of("common/engine/context_frames.c", SPARED,
   frames_behind_the_end_are_taken=("static clv_code handle_frame_after_end(", "!clv_context_needs_frame(e, c, &p->frame)", "false"))

# ---- master and three workers, simulated ---------------------------------------------------------
SIMULATED = "simulate/simulate --runs 200"
of("master/api/core/events.c", "simulate/simulate --seed 6409",
   a_worker_that_reports_a_failure_gets_no_abort=("static bool on_abort", "api_context_fail(rt, c, &why, 0)", "api_context_fail(rt, c, &why, NODE_BIT(from->index))"))
of("common/engine/node_frames.c", SIMULATED,
   a_kept_value_stays_on_its_device=("static clv_code handle_reference_frame(", "run_engine(n, &why)", "CLV_OK"))
of("common/engine/context_frames.c", SIMULATED,
   a_DROP_does_not_wait_for_its_CALLs=("static bool must_wait_for_calls", "f->kind == CLV_DROP || f->kind == CLV_PREPARE", "f->kind == CLV_PREPARE"))
of("common/engine/context_frames.c", SIMULATED + "0",
   a_PREPARE_does_not_wait_for_its_CALLs=("static bool must_wait_for_calls", "f->kind == CLV_DROP || f->kind == CLV_PREPARE", "f->kind == CLV_DROP"))
of("common/engine/context_pass.c", SIMULATED,
   many_gradients_are_summed_as_they_come=("clv_code clv_pass_add_gradient", "((*at)->phase == phase && (*at)->order < order)", "(*at)->phase == phase"))
of("common/engine/context_backward.c", SIMULATED,
   a_gradient_leaves_without_its_order=("", "p->frame.contribution_index = t->order;", "p->frame.contribution_index = 0;"))
of("common/engine/context_queue.c", SIMULATED,
   running_statistics_move_in_no_order=("void clv_queue_add_call", "l->runs_in_id_order = clv_module_buffer_bytes(c->mod) > 0;", "l->runs_in_id_order = false;"))
of("common/engine/context_work.c", SIMULATED,
   what_another_callers_end_frees_runs=("void clv_work_enqueue(", "if (ctx && clv_context_on_event(e, ctx, CONTEXT_WORK_READY)->action != CELL_RECORD) return;", ""))
of("common/engine/context_free.c", "tests/net/contexts/test_context_pipeline.py failed_context_fails_the_calls_waiting_for_its_backwards",
   who_follows_a_failed_backward_waits=("void clv_context_fail(", "clv_context_fail_followers(e, c);", ""))
of("common/model/graph/tensor_parallel.c", "tests/unit/graph/test_divide",
   any_layer_is_divided=("clv_code clv_divide_check_node", "n->op != CLV_OP_LINEAR", "false"),
   a_remainder_is_lost=("clv_code clv_divide_check_node", "extent % n_parts", "false"),
   glue_has_a_layers_key=("static clv_code add_glue_node", "name, CLV_GLUE_LAYER,", "name, 0,"),
   the_last_part_is_added_first=("static clv_code join_sum", "(int)k;", "(int)(v->d->n_parts - k);"),
   each_part_adds_the_bias=("static clv_code add_layer_by_rows", "attrs.bias = false;", ""))
of("master/api/extra/parallel_state.c", "tests/unit/api/test_parallel",
   a_parts_shape_is_taken_for_the_whole=("static cleave_status check_item", "is_counter || clv_shape_equal(&shape, &of->shape)", "true"),
   only_the_first_part_is_read=("static cleave_status join_module", "find_part_index(p, i)", "0"))
of("master/api/extra/parallel.c", "tests/unit/api/test_parallel",
   a_part_gets_its_layers_key=[("static cleave_status load_module(", ".seed = s->is_sharded ? 0 : o->seed,", ".seed = o->seed,"), ("static cleave_status load_module(", "s->is_sharded ? NULL : p->name", "p->name")],
   parts_draw_their_own_numbers=("static cleave_status load_module(", ".n_weights = (size_t)w.params->n,", ".n_weights = 0,"),
   a_glob_that_means_nothing_passes=("static cleave_status check_frozen", "if (!has_match)", "if (false)"))
of("common/engine/node_links.c", SIMULATED + "0",
   what_cannot_leave_is_forgotten=("void clv_node_send(", "code = clv_link_send(link, p, &err);", "code = clv_link_send(link, p, &err);\n    if (code == CLV_UNAVAILABLE) code = CLV_OK;"))
of("common/engine/node.c", SIMULATED,
   what_is_enclosed_stays_when_a_node_waits=("bool clv_node_poll", "clv_node_flush(n);", ""))
of("common/net/link/send_queue.c", SIMULATED,
   what_has_waited_waits_for_the_next=("static void append_packet(", "p->coalesces_with_next = false;", ""),
   credit_is_not_given_back=("void clv_send_queue_add_credit", "CLV_MIN(d->granted_credit, d->available_credit + CLV_MIN(bytes, d->granted_credit));", "d->available_credit;"))
of("master/api/core/send.c", SIMULATED,
   a_failure_of_a_context_is_told_to_nobody=("void api_context_send_aborts", "if (!(c->nodes_used & ~notified_nodes & NODE_BIT(i))) continue;", "continue;"))
of("master/api/core/links.c", SIMULATED,
   who_is_lost_fails_nothing=("", "api_node_fail(rt, p->index, &p->loss_error);", ""))
of("master/api/extra/kept_refs.c", SIMULATED,
   nobody_hears_what_a_kept_value_elsewhere_needs=("static void mark_inputs", "a->is_needed_by_peer |= a->module && a->module->node != v->module->node;", ""),
   a_released_kept_value_is_waited_for=("", "end_owner_wait(rt, k); api_id_table_remove", "api_id_table_remove"))

of("master/api/core/await.c", SIMULATED,
   no_cancel_settles_anything=("void api_future_abandon(", "if (f->cannot_cancel || f->is_finished) api_future_settle(rt, f, &why); else api_future_end_early(rt, f, &why);", ""),
   what_is_cancelled_reaches_workers=("void api_future_abandon(", "if (f->cannot_cancel || f->is_finished)", "if (true)"))
of("master/api/core/module_load.c", SIMULATED,
   a_module_has_its_predecessors_generation=("static cleave_status try_load_module(", "m->generation = rt->next_generations[m->index]++;", "m->generation = rt->next_generations[m->index];"))

# ---- memory that the host cannot touch -----------------------------------------------------------
of("common/model/graph/plan_run.c", "tests/unit/graph/test_far",
   a_device_is_lent_the_callers_memory=("static char *address_for_kernels(", "p->backend->memory && caller_buffer", "false"),
   what_fails_late_is_not_heard=("static clv_code finish_phase(", "if (err) *err = device_err;", "return CLV_OK;"),
   what_was_refused_has_no_place=("static clv_code finish_phase(", "return add_step_to_error(p, s, err);", "break;"),
   inputs_stay_with_the_caller=("static clv_code prepare_inputs(", "keep_inputs && !p->backend->memory", "keep_inputs"))
of("common/model/graph/plan_memory.c", "tests/unit/graph/test_far",
   copies_have_no_room=("static void place_caller_copies(", "p->info.scratch_bytes = p->rng_position_offset +", "(void)"),
   copies_stand_on_the_same_place=("static void place_caller_copies(", "end[is_backward] += clv_align_up(bytes[space], 64);", ""))
of("common/model/graph/plan_forward.c", "tests/unit/graph/test_far",
   refs_kernels_compute_in_a_devices_memory=("static clv_code prepare_kernel(", "&& !p->backend->memory", ""))
of("common/engine/module_block.c", "tests/unit/engine/test_far",
   nobody_knows_that_a_step_has_failed=("clv_code clv_module_finish(", "record_device_error(m, &why);", ";"),
   what_was_not_to_be_had_stays_charged=("clv_code clv_module_alloc_block(", "clv_module_discharge(m, m->pool, bytes);", ";"))
PEERS = "tests/gpu/test_backend"
of("kernels/cuda/peer.c", PEERS,
   a_copy_does_not_wait_for_what_it_copies=("clv_code clv_gpu_copy_from(", "CLV_TRY(make_stream_wait(src_gpu, dst_gpu, err));", ""),
   what_is_copied_is_written_before=("clv_code clv_gpu_copy_from(", "return make_stream_wait(dst_gpu, src_gpu, err);", "return CLV_OK;"))
of("common/engine/context_forward.c", "tests/unit/engine/test_far",
   values_pass_the_host=("static clv_code alloc_output(", "on_device = (on_device || !in_host_memory) && clv_module_can_copy_from(c->mod, c->mod);", "on_device = false;"))
of("common/engine/context_backward.c", "tests/unit/engine/test_far",
   gradients_pass_the_host=("static clv_code alloc_input_grad(", "to ? to : c->mod, c->mod) && (", "to ? to : c->mod, c->mod) && !to && ("))
of("common/engine/context_backward.c", "tests/unit/engine/test_work",
   one_of_two_gradients_on_a_device_is_lost=("static clv_code sum_on_device(", "if (has_sum) b->add(b, CLV_F32, sum->data, to, sum->n);", ""))
of("common/engine/module_block.c", "tests/unit/engine/test_work",
   copies_are_not_waited_for=("void clv_module_copy_bytes(", "if (code == CLV_OK) code = clv_backend_finish(m->o.backend, &why);", ""))
of("common/engine/module_memory.c", "tests/unit/engine/test_far",
   a_device_is_charged_with_nothing=("static clv_code charge_memory(", "if (m->o.pool) m->charged_bytes += bytes;", ""))
of("common/model/optim/optim.c", "tests/unit/optim/test_optim",
   sums_begin_with_nothing=("static clv_code init_adagrad_sums(", "sums[r->at + k] = (float)o->groups[g].initial_accumulator_value;", ""),
   the_first_average_is_half_of_nothing=("static void update_average(", "o->steps_taken == 1 ? 1 : 1 - decay", "1 - decay"),
   the_first_average_keeps_rounding_errors=("static void update_average(", "if (o->steps_taken == 1) move_average(o, params, 1, 0);", ""),
   averages_have_no_warm_up=("static void update_average(", "if (o->groups[0].ema_warmup)", "if (false)"),
   only_the_first_group_is_averaged=("static void move_average(", "o->n_all_extents", "o->n_extents[0]"),
   groups_may_have_other_averages=("static clv_code check_groups(", "groups[i].ema != groups[0].ema", "false"))
EMA, EMA_NET = "tests/unit/engine/test_ema", "tests/net/training/test_ema.py"
of("common/engine/module_state.c", EMA,
   a_written_parameter_leaves_its_average=("clv_code clv_state_item_set_async(", "item->ema ?", "false ?"),
   a_piece_is_averaged_at_the_beginning=("clv_code clv_state_item_part(", "if (item->ema) ret->ema = (char *)item->ema + offset;", ""),
   averages_show_what_may_not_be_read=("static void *find_ema_before_steps(", "&& !p->frozen", ""),
   a_stepped_average_is_written=("static void *find_ema_before_steps(", "&& *clv_optim_step_count(m->optim) == 0", ""))
of("common/engine/module_memory.c", EMA,
   averages_of_drawn_weights_begin_at_0=("static clv_code make_optimizer(", "return clv_optim_begin_ema(m->optim, m->block, err);", "return CLV_OK;"))
of("common/model/weights/read.c", "tests/unit/weights/test_checkpoint",
   averages_are_read_from_the_file_of_weights=("clv_code clv_weights_read_range(", "if (e->is_ema) f = f->averages;", ""),
   an_average_may_have_another_shape=("void clv_weights_take_ema(", "|| !clv_shape_equal(&average->shape, &e->shape)", ""))
of("common/engine/node_files.c", EMA_NET,
   a_file_must_have_averages=("static clv_code list_wanted(", "part == CLV_STATE_OPTIMIZER && clv_optim_is_ema(item->name)", "false"),
   a_file_may_not_have_averages=("static clv_code list_wanted(", "!keeps_ema && i < n_params", "false"),
   averages_of_a_file_are_not_loaded=("static clv_code list_wanted(", "if (part == CLV_STATE_EMA)", "if (false)"))
of("master/train/state.c", EMA_NET,
   averages_at_a_worker_are_not_loaded=("static clv_code load_kept_files(", "if (code == CLV_OK && clv_checkpoint_uses_ema(c))", "if (false)"))
of("master/train/resplit.c", EMA_NET,
   a_new_cut_must_have_averages=("static clv_code find_moments(", "if (clv_optim_is_ema(w->name) && !clv_checkpoint_tensors_find(&r->moments, w->name)) continue;", ""),
   a_new_cut_may_not_have_averages=("static clv_code find_tensors(", "r->is_moment_used[i] |= clv_optim_is_ema(r->moments.tensors[i].entry->name);", ""))
of("master/train/ledger_notes.c", "tests/net/hostile/test_known.py averages_of_weights_a_worker_had_are_not_secret",
   the_ledger_lacks_averages=("clv_code clv_trainer_new_samples(", "kind == CLEAVE_STATE_WEIGHTS || clv_optim_is_ema(items[i].name)", "kind == CLEAVE_STATE_WEIGHTS"))
of("master/api/core/workers.c", "tests/net/hostile/test_hostile_worker.py worker_that_knows_no_averages_is_refused",
   workers_may_know_no_averages=("static clv_code check_ema(", "if (p->supports_ema || ", "if (true || "))
of("master/plan/checkpoint_cut.c", EMA_NET,
   a_run_without_averages_has_some=("clv_code clv_checkpoint_choose_weights(", "if (!(config->train.ema > 0))", "if (false)"))
of("master/train/modules.c", EMA_NET,
   nobody_averages=("static clv_code make_optimizer(", "t->config->train.ema,", "0,"))
of("worker/service/devices.c", "tests/unit/service/test_devices",
   every_device_is_the_processor=("static clv_code add_device(", "d->backend = backend;", "d->backend = clv_backend_cpu();"))
of("master/api/core/module.c", "tests/unit/api/test_far",
   a_module_at_the_master_is_on_the_processor=("static const clv_backend *find_own_backend(", "return other_backends->list[i];", "return clv_backend_cpu();"))

# ---- futures -------------------------------------------------------------------------------------
FUTURES = "tests/net/api/test_api_futures.py"
of("master/api/core/future.c", FUTURES,
   a_step_does_not_wait_for_the_backward_before_it=("bool api_future_has_earlier_operation", "o->op->runs_in_order && o->context == f->context", "false"))
of("master/api/extra/futures.c", FUTURES,
   who_asks_late_is_never_called=("static cleave_status add_callback(", "if (!f->is_done || !is_first) return CLEAVE_OK;", "return CLEAVE_OK;"))
of("master/api/core/await.c", FUTURES,
   what_is_cancelled_is_sent=("void api_future_abandon(", "if (f->cannot_cancel || f->is_finished)", "if (true)"))
of("master/api/core/wait.c", FUTURES,
   waits_for_modules_are_not_interrupted=("bool api_wait(", "if (api_is_interrupted(rt)) return false;\n  return api_sleep(rt, until_ns) && !api_is_interrupted(rt);", "return api_sleep(rt, until_ns);"))
of("common/net/rpc/fork.c", FUTURES,
   children_share_connections=("static void after_fork_in_child(", "dup3(null_fd, forks.fds_to_close[i], O_CLOEXEC)", "0"))
of("common/net/rpc/channel.c", FUTURES,
   calls_of_a_thread_are_not_interrupted=("static bool is_call_interrupted(", "is_stop_requested()", "false"))
of("master/api/core/await.c", FUTURES,
   nobody_goes_on_with_what_nobody_waits_for=("static void *run_futures_thread(", "api_futures_advance(rt)", "UINT64_MAX"))

# ---- the same programs over real daemons ---------------------------------------------------------
DAEMONS = "tests/simulate/daemons/test_daemons.py"
of("master/api/core/incarnations.c", DAEMONS + " programs_recover_from_a_lost_worker",
   who_was_lost_need_not_be_loaded_again=("cleave_status api_check_module_present(", "m->n_rejoins_at_load == p->n_rejoins", "true"))
of("master/api/core/module_load.c", SIMULATED,
   what_a_late_attempt_left_is_in_the_way=("cleave_status api_module_load_at_node(", "if (!m->may_be_at_node) return", "if (m->state != MODULE_GONE) return"),
   a_reload_that_is_tried_again_keeps_its_generation=("static cleave_status try_load_module(", "m->generation =", "if (!m->may_be_at_node) m->generation ="))
of("master/api/core/await.c", DAEMONS + " programs_give_the_bits_of_a_local_run",
   a_cancel_does_nothing=(
       "void api_future_abandon(",
       "if (f->cannot_cancel || f->is_finished) api_future_settle(rt, f, &why); else api_future_end_early(rt, f, &why);",
       "if (!f) api_future_end_early(rt, f, &why);"))
of("common/net/rpc/channel.c", "tests/net/operations/test_tls.py dying_server_is_not_reported_as_a_refusal",
   who_dies_behind_the_handshake_has_refused_us=("static clv_code connect_with_retry(", "code != CLV_UNAUTHENTICATED ||", "true ||"))

# ---- workers that come back ----------------------------------------------------------------------
REJOIN = "tests/net/api/test_api_rejoin.py killed_direct"
of("master/api/extra/rejoin.c", REJOIN,
   what_was_saved_of_an_optimiser_is_not_put_back=("static cleave_status send_reload_state(", "k < 2", "k < 1"),
   a_context_of_an_earlier_life_is_not_marked=("static void end_contexts_at_node(", "c->nodes_since_restarted |= NODE_BIT(node);", ""),
   weights_that_are_not_kept_are_not_asked_for=("static cleave_status copy_reload_state(", "|| !m->has_given_weights", "|| true"))
of("master/api/core/incarnations.c", REJOIN,
   a_module_that_was_lost_is_taken_for_there=("cleave_status api_check_module_present(", "m->n_rejoins_at_load == p->n_rejoins", "true"))
of("master/api/core/incarnations_int.h", REJOIN,
   an_earlier_life_has_the_same_name=("static inline const char *api_wire_name(", "p->n_rejoins ? p->wire_name : p->name", "p->name"))
of("master/api/core/state_tables.c", "tests/unit/api/test_api_states",
   who_was_lost_again_has_come_back=("[PEER_LOST_DURING_REJOIN] = {", "[PEER_REJOINS] = DO(REFUSE, PEER_LOST_DURING_REJOIN)", "[PEER_REJOINS] = DO(SETTLE, PEER_PRESENT)"))
of("master/api/core/wait.c", "tests/faults/test_faults.py references_over_a_direct_link_give_the_same_bits",
   ends_are_sent_once=("static uint64_t run_jobs(", "i < rt->n_jobs", "i < 1"))
of("master/api/core/workers.c", REJOIN,
   who_is_lost_is_dialled=("static uint32_t list_direct_peers(", "is_permitted && api_can_link_directly(from, p)", "is_permitted"))
of("master/api/core/workers.c", "tests/net/api/test_api_rejoin.py cut_off",
   the_session_of_an_earlier_life_stays_open=("static clv_code connect_worker(", "if (p->state != PEER_PRESENT) api_end_session(p);", ""))

of("master/api/core/optimizer.c", "tests/net/api/test_recovery_example.py",
   a_restored_schedule_begins_at_0=("cleave_status cleave_optimizer_set_steps(", "optimizer->n_steps_decided = steps;", "optimizer->n_steps_decided = 0 * steps;"))

# ---- parameters that are frozen, optimisers that are replaced ------------------------------------
of("master/api/core/module_load.c", "tests/net/api/test_api_optimizers.py",
   a_module_that_is_loaded_again_loses_its_moments=("cleave_status api_module_restore_state(", "for (int k = 0; k < 2; k++)\n    if (m->n_saved_state_items[k])", "for (int k = 0; k < 1; k++)\n    if (m->n_saved_state_items[k])"))
of("master/api/core/module_unload.c", "tests/net/api/test_api_optimizers.py",
   moments_outlive_their_optimiser=("void api_module_mark_for_reload(", "m->resets_moments |= resets_moments;", ""))

# ---- modules that end ----------------------------------------------------------------------------
of("common/engine/context_free.c", "tests/unit/engine/test_master",
   an_end_fails_its_context_again=("bool clv_contexts_fail_context(", "if (!c || c->state == CONTEXT_ENDING) return false;", "if (!c) return false;"))
of("common/engine/context_unload.c", "tests/unit/engine/test_unload",
   a_step_behind_UNLOAD_does_not_keep_a_module=("bool clv_contexts_is_module_in_use(", "if (has_pending_change(e, module)) return true;", ""),
   running_statistics_do_not_keep_a_module=("static bool is_used_by_context(", "has_bit(c->buffers_saved, module) ||", ""),
   calls_do_not_keep_a_module=("static bool is_used_by_context(", "v->producer->module == module", "false"))
of("common/engine/node_modules.c", "tests/unit/engine/test_unload",
   free_tensors_of_its_sizes_stay=("clv_code clv_node_remove_module(", "clv_pool_free_unused_tensors(n->o.pool);", ""),
   what_it_did_is_forgotten=("static clv_code remove_from_index(", "if (!is_pinned) add_counts(&n->unloaded_counts, &c);", ""))
of("common/engine/module_memory.c", "tests/unit/engine/test_unload",
   what_a_module_was_charged_stays=("void clv_module_free(", "if (pool_to_charge(m)) clv_module_discharge(m, pool_to_charge(m), m->charged_bytes);", ""),
   what_its_calls_were_charged_stays=("clv_code clv_module_call_get(", "m->charged_bytes += bytes;", ""))

# ---- gradients that the program gives ------------------------------------------------------------
of("common/model/graph/reads.c", "tests/unit/graph/test_reads",
   an_input_that_wants_a_gradient_reads_nothing=("static bool reads_params_in_backward(", "reads_params |= nodes[n->in[k]].needs_grad;", ";"),
   what_no_output_needs_is_read=("static bool reads_params_in_backward(", "return reads_params && nodes[i].is_reachable && nodes[i].has_params;", "return reads_params && nodes[i].has_params;"),
   a_batchnorm_reads_nothing=("static bool can_fuse_input_and_weight_gradients", "|| def->uses_batch_statistics", ""))
of("worker/store/state_names.c", "tests/unit/store/test_states",
   a_name_goes_to_the_disk_as_it_is=("clv_code clv_state_check_name(", "if (clv_is_file_name(name))", "if (true)"),
   a_full_disk_is_no_full_disk=("", "{ENOSPC, \"the worker's disk is full\"", "{0, \"the worker's disk is full\""))
of("worker/store/states.c", "tests/unit/store/test_states",
   a_file_is_loaded_while_it_is_written=("static clv_code lock_folder_when_unclaimed(", "CLV_TRY(clv_state_await_claims(s, identity, name, NULL, cancel_hook, err));", ";"))
of("worker/store/state_claims.c", "tests/unit/store/test_states",
   a_file_that_makes_way_counts=("static uint64_t sum_file_bytes(", "strcmp(name, own_claim->name) != 0 &&", ""),
   a_file_in_progress_is_free=("clv_code clv_state_reserve_bytes(", "+ sum_claim_bytes(s, o->dir.data, own_claim)", ""))
of("worker/service/state_writer.c", "tests/unit/service/test_state_writer",
   a_withdrawn_file_is_reported=("static void report_result(", "if (!save) return;", "if (!save) save = (clv_state_save *)(uintptr_t)j->data_source;"),
   one_identity_is_served_alone=("static write_job *take_next_job(", "strcmp((*at)->owner, w->last_owner) == 0", "false"))
of("worker/store/digests.c", "tests/net/hostile/test_rules.py r3_20_a_kept_file_that_changed",
   a_changed_file_has_its_old_digest=("static bool is_same_version(", "a->bytes == b->bytes && is_same_time(&a->mtime, &b->mtime) && is_same_time(&a->ctime, &b->ctime)", "a->bytes == b->bytes"))
of("master/api/core/kept.c", "tests/unit/api/test_kept",
   a_mix_of_two_files_is_read=("static clv_code read_file_part(", "if (q->file_version && q->file_version != r.files[0].file_version)", "if (false)"),
   a_list_needs_no_end=("static clv_code append_files(", "if (l->n && strcmp(l->files[l->n - 1].name, r->files[i].file_name) >= 0)", "if (l->n > 100)"))
of("common/engine/node_saves.c", "tests/unit/engine/test_saves",
   a_file_has_later_weights=("static clv_code copy_data(", "if (bytes) memcpy((void *)(uintptr_t)s->list[i].data, list[i].data, bytes);", "s->list[i].data = list[i].data;"),
   a_file_is_not_withdrawn=("void clv_node_drop_saves(", "n->o.files.withdraw(n->o.files.user, &s->save);", ";"))
of("common/engine/node_files.c", "tests/unit/engine/test_saves",
   a_file_of_another_digest_is_loaded=("static clv_code open_file(", "if (code == CLV_OK) code = check_digest(f, *ret, err);", ""))
of("common/model/graph/plan_empty.c", "tests/unit/graph/test_plan_empty",
   a_mean_over_none_is_left_as_it_was=("static clv_code write_nan_output(", "i < k->n_output_values", "i < k->n_output_values && !k"),
   what_nothing_flows_to_keeps_its_gradient=("static clv_code zero_weight_gradients(", "CLV_TRY(clv_backend_fill(k->backend, a->dparam[i], 0, bytes, err))", "(void)bytes"))
of("common/model/graph/joined.c", "tests/net/api/test_api_shapes.py",
   every_output_is_the_first=("clv_code clv_graph_take_output(", "start += clv_graph_values_per_record(&g->nodes[outputs[i]]);", ";"))
of("master/api/core/call.c", "tests/net/api/test_api_shapes.py",
   modules_at_home_read_rounded_copies=("static cleave_status check_master_gets_own_dtype(", "if (!v->is_fetched_as_bf16 || v->module->node == 0)", "if (v)"))
of("common/engine/context_value.c", "tests/net/api/test_api_shapes.py",
   nothing_is_rounded_for_the_master=("static bool is_rounded_for(", "name == 0 && v->is_rounded_for_master", "name != name && v->is_rounded_for_master"))
of("common/engine/context_backward.c", "tests/net/api/test_api_shapes.py",
   gradients_of_bf16_inputs_are_f32=("static clv_code send_gradients(", "c->bf16_inputs >> i & 1", "false"))
of("master/api/core/adapters.c", "tests/net/api/test_api_shapes.py",
   the_base_under_adapters_learns=("void api_adapters_freeze_base(", "p->frozen = true;", ""))
GIVEN_GRADIENTS = "tests/net/api/test_api_gradients.py"
of("master/api/extra/gradients.c", GIVEN_GRADIENTS,
   a_gradient_that_is_taken_stays=("cleave_status cleave_leaf_gradient_take(", "clv_steal(&v->gradient)", "clv_tensor_ref(v->gradient)"))
of("master/api/core/optimizer.c", GIVEN_GRADIENTS,
   the_programs_share_is_not_in_the_norm=("cleave_status api_decide_step(", "squared_norm += f->own_gradients_squared_sum;", ""))
of("master/api/core/forget.c", "tests/net/api/test_api_kept.py direct",
   nodes_keep_forgotten_calls=("cleave_status api_forget_unneeded_values(", "api_drop_values_at_nodes(rt, first_unneeded_value, error)", "((void)error, CLEAVE_OK)"),
   kept_calls_are_forgotten=("static bool is_value_needed(", "v->is_kept ||", ""),
   needed_calls_are_forgotten=("static bool is_value_needed(", "v->last_needed_sweep == rt->n_value_sweeps", "false"))
GRADIENTS = "tests/unit/api/test_gradients"
of("master/api/core/backward.c", GRADIENTS,
   a_given_gradient_is_not_announced=("static cleave_status mark_root", "v->n_contributions = v->n_contributions_received = given_gradient != NULL;", "v->n_contributions = v->n_contributions_received = 0;"),
   a_backward_over_changed_parameters_is_sent=("static bool is_call_outdated", "if (v->weights_version == m->weights_version || c->has_stepped_at_position[m->index]) return false;", "return false;"))
of("master/api/extra/gradients.c", GRADIENTS,
   nobody_votes_on_what_was_written=("static cleave_status send_gradient_write(", "c->nodes_with_written_gradients |= NODE_BIT(f->module->node);", ";"))
of("master/api/core/events.c", GRADIENTS,
   what_was_not_finite_stays_so=("static bool on_finished", "c->nodes_with_nonfinite_gradients &= ~NODE_BIT(from->index);", ";"))

# ---- devices -------------------------------------------------------------------------------------
CUDA = "tests/net/training/test_cuda.py"
of("worker/service/snapshot.c", "tests/net/hostile/test_isolation.py",
   a_tenant_is_told_what_all_have_on_a_device=("static void fill_devices", "out->caller_sees_all ? ", "true ? "))
of("common/model/graph/plan_memory.c", CUDA,
   buffers_on_a_device_stand_anywhere=("static size_t padded_size", "DEVICE_ALIGN)", "64)"))
of("kernels/cuda/backend.c", "tests/gpu/test_backend",
   what_another_left_in_memory_is_found=("static clv_code memory_allocate(", "g->vendor->fill(g->stream, p, 0, CLV_MAX(bytes, (size_t)1), err)", "CLV_OK"))
of("common/engine/context_run.c", "tests/gpu/test_node",
   a_node_waits_for_its_device=("static bool dispatch_work", "e->env.compute_lock && clv_work_is_on_device(e, w)", "false"))
of("common/engine/context_run.c", "tests/gpu/test_node",
   a_call_is_charged_by_the_hosts_clock=("clv_code clv_work_compute(", "(uint64_t)(ms * 1e6)", "0"))
of("common/engine/node_frames.c", "tests/gpu/test_node",
   a_share_pays_for_a_host_that_was_held_up=("static void refund_slept_time(", "w->device_ns && slept > w->device_ns", "false"))
of("kernels/cuda/timer.c", "tests/gpu/test_node",
   the_end_of_a_call_is_not_recorded=("void clv_gpu_mark_time(", "if (g->timer.is_running)", "if (false)"))
RECORDING = "tests/gpu/test_recording"
of("kernels/recorder.c", RECORDING,
   what_is_recorded_is_never_paid_back=("static void free_record(", "if (r->account.discharge)", "if (false)"))
of("common/engine/module_memory.c", "tests/gpu/test_node",
   records_are_nobodys_bytes=("static clv_code open_recorder(", "clv_recorder_set_account(m->recorder, &account);", "(void)account;"))
of("kernels/cuda/staging.c", "tests/gpu/test_node",
   a_copy_is_waited_for_twice=("static clv_code wait_for_slot(", "slot->is_busy = false;", ";"))
of("kernels/cuda/staging.c", "tests/gpu/test_backend",
   what_was_refused_is_refused_again=("static clv_code read_fault(", "if (!ret->is_set) return CLV_OK;", "return CLV_OK;"),
   what_a_session_sent_stays_in_the_slots=("void clv_gpu_close_copy_slots(", "memset(g->slots[i].host, 0, GPU_COPY_SLOT_BYTES);", ";"),
   a_slot_is_written_while_it_is_copied=("static clv_code take_next_slot(", "wait_for_slot(g, *ret, err)", "((void)err, CLV_OK)"))
of("common/model/graph/plan_run.c", RECORDING,
   an_occasion_is_baked_into_a_graph=("static clv_code upload_rng_position(", "if (!p->uses_rng_position || !p->options.recorder) return CLV_OK;", "return CLV_OK;"),
   a_graph_adds_where_it_should_overwrite=("static clv_record_key recorder_key(", "(uintptr_t)phase << 1 | f->accumulate", "(uintptr_t)phase << 1"),
   a_graph_writes_the_gradients_of_another_context=("static clv_record_key recorder_key(", "key.pointers[SPACE_COUNT + 1] = f->grads;", ""))
of("kernels/recorder.c", RECORDING,
   what_is_not_recorded_is_an_error=("static void make_record(", "mark_refused(r, k, &reason);", "k->record = r;"))
of("kernels/cuda/recording.c", RECORDING,
   a_refused_recording_fails_the_session=("static clv_code recording_end(", "g->deferred_error = (clv_err){0};", ""))
of("kernels/cuda/attention.c", RECORDING,
   attention_in_a_graph_drops_the_same_again=("static clv_code attention_open(", "k->r.base.reads_rng_position = k->r.d.training && k->r.d.attrs.p > 0;", ""))
of("kernels/cuda/chain.c", RECORDING,
   a_chain_in_a_graph_drops_the_same_again=("", ".reads_rng_position = count_ops(d->link, d->n_links, CLV_OP_DROPOUT) > 0,", ""))
of("tests/run-tests", "tests/checks/test_simulated.py",
   no_sum_of_what_the_simulation_takes=("", "seconds > most", "False"))
of("kernels/cuda/runs.c", "tests/gpu/test_backend",
   other_runs_are_taken_for_those_before=("static bool is_table_of(", "if (t->host_ranges[i].at != ranges[i].at || t->host_ranges[i].n != ranges[i].n) return false;", ""))
of("kernels/cuda/chunks_int.cuh", "tests/gpu/test_backend",
   a_chunk_is_of_the_first_run=("static __device__ inline clv_extent gpu_find_chunk(", "low = 0, high = n", "low = 0, high = 1"))
of("kernels/load/plans.c", "tests/unit/load/test_plans",
   a_plan_that_others_may_write_is_read=("static bool is_private_file(", "!(s->st_mode & (S_IRWXG | S_IRWXO))", "true"),
   a_damaged_plan_is_read=("clv_code clv_plan_parse(", "memcmp(data, line, header_len) != 0", "memcmp(data, line, sizeof format_name) != 0"),
   plans_fill_the_disk=("static void store_plan(", "> MAX_PLANS", "> INT32_MAX"))
of("kernels/cuda/lstm.c", "tests/gpu/test_cuda lstm",
   all_layers_have_the_weights_of_the_first=("static cuda_lstm_params list_params(", "lstm_space.param_index[i / n_slots]", "lstm_space.param_index[0]"),
   gradients_are_added_to_what_lay_in_scratch=("static clv_code cudnn_backward_weights(", "CLV_TRY(v->fill(k->gpu->stream, args->dweights, 0, k->lstm_space.weights, err));", ""),
   an_lstm_loses_its_output_before_backward=("static void set_cudnn_functions(", "b->saved_flags |= CLV_SAVE_OUT;", ";"))
of("kernels/cuda/lstm.cu", "tests/gpu/test_cuda lstm",
   the_last_micro_batch_counts_alone=("static __global__ void unpack_params(", "p.param[i][j] + value", "0 * p.param[i][j] + value"))
of("common/model/graph/plan_fuse.c", "tests/gpu/test_together",
   a_relu_hides_what_others_read=("static void try_fuse_relu_forward(", "!clv_plan_has_one_reader(p, x) ||", ""))
of("common/model/graph/plan_chain.c", "tests/gpu/test_together",
   a_chain_hands_gradients_on_before_others=("static bool extend_chain(", "!keeps_gradient_order(p, &extended, next) ||", ""))
of("common/model/graph/plan_run.c", "tests/gpu/test_together",
   a_chain_draws_what_its_last_op_would=("static clv_kernel_args make_kernel_args(", "q->rng_node", "s->node"))
of("kernels/cuda/chain.c", "tests/gpu/test_together",
   a_chain_goes_on_behind_a_sum_it_needs=("bool clv_gpu_has_chain(", "find_last_reader(links, n, &n_readers) < add_index", "true"))
of("kernels/cuda/conv.cu", "tests/gpu/test_together",
   a_bias_has_no_relu_behind_it=("static __global__ void add_bias(", "has_relu && value <= 0 ? 0 : value", "value"))
of("kernels/cuda/batchnorm.cu", "tests/gpu/test_together",
   a_closed_relu_lets_gradients_pass=("static __device__ inline float pass_relu(", "return passes_relu ? gpu_to_float(f.dy[index]) : 0;", "return gpu_to_float(f.dy[index]);"),
   what_is_added_is_told_more_than_passed=("struct gradient_term", "if (gated_dy) gated_dy[index] = gpu_from_float<T>(dy);", "if (gated_dy) gated_dy[index] = grad.dy[index];"))
TWO = "tests/net/training/test_two_devices.py"
of("worker/service/methods.c", TWO,
   every_device_computes_as_the_first=("static clv_code on_hello(", "{b->name, clv_backend_isa(b), clv_backend_libraries(b)}", "{b->name, clv_backend_isa(clv_service_backend(v)), clv_backend_libraries(b)}"))
of("master/watch/hello.c", TWO,
   every_stage_computes_on_the_first_device=("static clv_code append_stage(", "h->device_names[device], h->device_kinds[device]", "h->device_names[device], h->device_kinds[0]"))
of("master/watch/doctor.c", TWO,
   only_the_first_device_counts=("static bool is_device_used(", "clv_wire_find_device(h, s->device) == device", "device == 0"))
of("common/net/wire/hello.c", "tests/unit/wire/test_session",
   an_older_worker_says_nothing_of_its_first_device=("static clv_wire_device_kind derive_device_kind(", "strcmp(m->device_names[0], name) == 0 ||", ""))
of("master/api/core/module.c", CUDA,
   cuda_without_a_number_is_no_device=("static void resolve_device(", 'strcmp(m->device, "cuda") == 0 && cuda_device_name', "false"),
   tf32_on_a_processor_is_taken=("static clv_code check_tf32(", "!m->allows_tf32 ||", "!m->allows_tf32 || m ||"))
of("master/ops.c", "tests/net/operations/test_cli.py",
   ops_forget_what_cuda_has=("static bool has_cuda_op(", "return has_op[op];", "return has_op[op] && op < 3;"))
TYPES = "tests/gpu/test_cuda_types"
of("kernels/cuda/products.c", TYPES + " linear",
   products_do_not_round_to_tf32=("clv_code clv_gpu_new_product(", "desc.math = gpu_product_math(k)", "desc.math = CLV_CUDA_F32"))
of("kernels/cuda/backend.c", "tests/gpu/test_backend",
   an_old_device_takes_tf32=("static clv_code check_capability(", "capability >= 80", "capability >= 70"))
PLANS = "tests/gpu/test_cuda_bf16"
of("kernels/cuda/batchnorm.cu", PLANS,
   what_a_sum_is_added_to_is_not_rounded=("static __device__ inline float rounded_output(", "gpu_round<T>(", "("))
of("kernels/cuda/chain.c", PLANS,
   a_chain_of_images_in_bf16_rounds_once=("static bool can_chain_node(", "if (d->bf16 && d->out.rank == 4) return false;", ""))
of("kernels/cuda/pointwise.cu", TYPES + " dropout",
   numbers_are_drawn_as_values_lie=("static __device__ inline size_t index_in_layout(", "if constexpr (std::is_same<T, float>::value) return i;", "return i;"))
of("kernels/cuda/conv_last.c", TYPES + " conv2d",
   gradients_of_weights_replace_what_is_there=("static clv_code store_weight_grad(", ".accumulate = a->accumulate", ".accumulate = false"))
of("common/engine/module_memory.c", CUDA, tf32_is_lost_on_its_way=("static clv_code make_plan(", ".tf32 = m->o.tf32,", ""))

# ---- attention -----------------------------------------------------------------------------------
of("kernels/ops/attention.c", "tests/ops/test_golden attention",
   attention_sees_what_comes_later=("static int64_t compute_scores(", "clv_count_visible_keys(&s->k->d.attrs, i, length)", "length"))
of("kernels/cpu/attention.c", "tests/ops/test_pair attention",
   a_row_meets_all_keys_of_its_tile=("static size_t mask_hidden_keys(", "t.i + (int64_t)r,", "t.i + (int64_t)t.rows - 1 + 0 * (int64_t)r,"),
   weights_are_dropped_by_padded_place=("static void apply_dropout(", "(uint32_t)(h->sample * k->dims.heads + h->query_head), (uint32_t)i", "(uint32_t)h->query_head, (uint32_t)(h->sample * k->dims.t + i)"))
of("kernels/ops/attention.c", "tests/ops/test_golden attention",
   the_reference_drops_by_padded_place=("static void draw_dropout_factors(", "(uint32_t)(n * s->x.heads + h), (uint32_t)i", "(uint32_t)h, (uint32_t)(n * s->x.t + i)"))
of("kernels/cpu/attention.c", "tests/ops/test_steps",
   any_length_of_a_sample_is_taken=("static clv_code check_lengths(", "CLV_TRY(clv_check_length(a->in[3], n, k->dims.s, &length, err));", "if (clv_check_length(a->in[3], n, k->dims.s, &length, err) != CLV_OK) continue;"))

# ---- models of Hugging Face ----------------------------------------------------------------------
HF_CONFIG, HF_GRAPH = "tests/unit/hf/test_hf_config", "tests/unit/hf/test_hf_graph"
of("common/model/hf/config_values.c", HF_CONFIG,
   sliding_windows_are_taken_for_all_places=("clv_code clv_hf_require_words(", "if (more) CLV_TRY(clv_hf_require_word(r, at, err));", "if (more && at) CLV_TRY(clv_json_skip(&r->j, err));"),
   a_number_of_config_json_is_taken_whatever_it_is=("clv_code clv_hf_read_integer(", "(int64_t)at->low, (int64_t)at->high", "INT64_MIN, INT64_MAX"),
   no_window_is_the_class_default=("clv_code clv_hf_read_window(", "*(int64_t *)address_of_field(r, at) = 0;", ""))
of("common/model/hf/config.c", HF_CONFIG,
   a_key_that_is_missing_is_zero=("static clv_code check_required(", "t->rows[i].is_required && ", "t->rows[i].low < 0 && "),
   known_keys_can_be_listed_as_ignored=("static clv_code check_ignored(", ">= 0)", "> 1 << 30)"))
of("common/model/hf/config_object.c", HF_CONFIG,
   keys_of_nobody_are_skipped=("static clv_code refuse_or_skip_key(", "if (clv_json_keys_have(r->ignored, name, key->len))", "if (key->len)"),
   listed_keys_are_refused=("static clv_code refuse_or_skip_key(", "if (clv_json_keys_have(r->ignored, name, key->len))", "if (!key)"))
of("common/model/hf/other_files.c", HF_CONFIG,
   files_beside_the_config_are_not_read=("clv_code clv_hf_check_other_files(", "f < CLV_HF_OTHER_FILES", "f < 0"))
of("common/model/hf/other_keys.c", HF_CONFIG,
   channels_in_another_order_are_taken=("static const hf_row preprocessor_rows[]", ".read = clv_hf_require_false,\n     .reason = \"channels are read", ".read = clv_hf_skip,\n     .reason = \"channels are read"))
of("master/plan/picture_values.c", "tests/net/training/test_hf.py pictures_that_the_session_normalises_otherwise_are_told",
   pictures_are_normalised_by_any_mean=("static bool has_same_channels(", "fabs(x - y) > 1e-4", "fabs(x - y) > 1e4"))
of("common/model/hf/config_values.c", HF_CONFIG,
   refused_families_have_no_reason=("clv_code clv_hf_fail_unknown(", "strcmp(text, refusals[i].value) == 0", "!text"))
of("master/tokens/tokenizer.c", "tests/unit/tokens/test_tokens",
   white_space_that_was_taken_is_a_token=("static clv_code encode_between_added(", "if (token_match.end > token_match.start)", "if (token_match.end >= token_match.start)"))
of("master/tokens/settings_file.c", "tests/unit/tokens/test_tokens",
   unknown_settings_are_skipped=("static clv_code read_setting(", "if (clv_json_keys_have(&ignored_keys, s->key, key.len))", "if (key.len)"),
   listed_settings_are_refused=("static clv_code read_setting(", "if (clv_json_keys_have(&ignored_keys, s->key, key.len))", "if (!key.len)"),
   special_tokens_that_nobody_has_are_taken=("static clv_code check_is_added(", "if (token->len && clv_vocab_find(&s->t->added_tokens, token->data, token->len))", "if (s)"),
   flags_of_added_tokens_are_not_compared=("static clv_code compare_decoder(", "|| (e->flags & t.given_flags) != t.flags", ""),
   added_tokens_may_be_left_out=("static clv_code check_all_tokens_listed(", "if (n == s->t->added_tokens.n)", "if (n <= s->t->added_tokens.n)"),
   numbers_of_added_tokens_are_not_compared=("static clv_code compare_decoder(", "!is_same_id ||", "(!is_same_id && !e) ||"),
   the_case_is_not_compared=("static clv_code compare_flag(", "has_step ? found == expected : !found", "has_step ? (found | expected) < 2 : !found"),
   files_beside_a_tokenizer_are_not_read=("clv_code clv_tokenizer_check_folder(", "tokenizer_file_name) != 0", "tokenizer_file_name) != 1 << 20"),
   any_name_has_files_beside_it=("clv_code clv_tokenizer_check_folder(", "tokenizer_file_name) != 0", "tokenizer_file_name) == 1 << 20"))
of("master/api/core/graph.c", "tests/net/api/test_api_shapes.py",
   a_programs_list_of_ignored_keys_is_lost=("cleave_status api_graph_from_hf(", "TRY_API(add_ignore_keys(&model, o, error));", "(void)add_ignore_keys;"))
of("common/model/hf/config_rope.c", HF_CONFIG,
   the_old_name_of_a_rope_counts_first=("clv_code clv_hf_apply_rope(", "from->kind >= 0 ? from->kind : CLV_MAX(from->old_kind, 0)", "from->old_kind >= 0 ? from->old_kind : CLV_MAX(from->kind, 0)"),
   a_rope_without_its_factor_is_taken=("static clv_code check_given(", "if (number > 0)", "if (number >= 0)"))
of("common/model/hf/hf.c", HF_GRAPH,
   windows_do_not_bite=("static clv_code check_length(", "c->window && length > c->window", "false"),
   dynamic_ropes_have_no_limit=("static clv_code check_length(", "length > c->rope.original_positions", "false"))
of("common/model/hf/distilbert.c", HF_GRAPH,
   distilbert_drops_nothing_behind_its_layers=("static clv_code add_block(", 'CLV_TRY(clv_hf_add_dropout(b, "ffn.dropout", b->c->hidden_dropout, x, err));', ""))
of("common/model/hf/llama.c", HF_GRAPH,
   heads_of_qwen3_have_no_norm=("static clv_code add_head_norm(", "b->c->family != CLV_HF_QWEN3", "heads"),
   phi3_values_are_its_keys=("static clv_code add_projections(", '"self_attn.value", queries + keys, keys', '"self_attn.value", queries, keys'),
   llama3_turns_as_linear=("static clv_code add_rotary_positions(", "r->kind == CLV_HF_ROPE_LLAMA3 ? 6 : scaled ? 3 : 2", "scaled ? 3 : 2"))
of("common/model/hf/config_keys.c", "tests/unit/plan/test_hf_keys",
   a_reason_is_not_that_of_the_page=("static const hf_row rows[] = {", '"nothing is generated"', '"something is generated"'))
of("kernels/ops/ops.h", "tests/ops/test_golden rotary",
   llama3_angles_are_all_divided=("CLV_ROTARY_INLINE double clv_rotary_angle(", "unscaled_share = unscaled_share < 0 ? 0 : unscaled_share > 1 ? 1 : unscaled_share;", "unscaled_share = 0;"),
   linear_angles_are_not_divided=("CLV_ROTARY_INLINE double clv_rotary_angle(", "return f / r->factor;", "return f;"))
of("common/model/hf/build.c", HF_GRAPH,
   a_tied_head_has_a_weight_of_its_own=("clv_code clv_hf_add_lm_head(", "return b->c->is_head_tied ?", "return b->c->is_head_tied && *x < 0 ?"))
of("common/model/hf/llama.c", HF_GRAPH,
   classes_of_tokens_drop_nothing=("static clv_code add_head(", "b->c->head_dropout", "0"))
of("common/model/models/ranges.c", "tests/unit/models/test_hf_models",
   a_prefix_must_be_given=("bool clv_block_find_layers(", "block = name_without_prefix(g, block);", ""))
HF_SPLIT = "tests/net/training/test_hf.py"
of("common/model/hf/gpt2.c", HF_GRAPH,
   all_weights_of_gpt2_begin_alike=("static clv_code add_projection(", "b->c->init_deviation / sqrt(n_half_blocks)", "b->c->init_deviation + 0 * n_half_blocks"))
of("common/model/hf/encoder.c", HF_GRAPH,
   blocks_drop_nothing=("static clv_code add_residual_norm(", 'CLV_TRY(clv_hf_add_dropout(b, "dropout", b->c->hidden_dropout, x, err));', ""))
of("master/run/run_export.c", HF_SPLIT,
   a_masked_head_has_one_name_of_its_bias=("clv_code clv_export_hf_folder(", "CLV_TRY(add_bias_of_head(&x, err));", "(void)add_bias_of_head;"))
of("common/model/models/hf.c", HF_SPLIT,
   lengths_are_not_read=("clv_code clv_hf_model_add_layers(", 'find_input(g, "lengths", -1)', "-1"))

import breaks_gpu  # adds rows to BREAKS, as each import below does
import breaks_guards
import breaks_known
import breaks_look
import breaks_ops
import breaks_runs
import breaks_tables
import breaks_transformers  # makes its rows with `of` above
