# SPDX-License-Identifier: Apache-2.0
"""Deliberate breaks of the statements about what a worker can read, each with its test; further
rows of breaks.BREAKS. Rules and measurements (the look) make these statements."""
from breaks import of

of("master/look/tokens.c", "tests/unit/look/test_readers",
   the_mean_of_a_place_stays=("static void try_comparison_method", "if (comparison == COMPARE_ALL_LESS_MEAN)", "if (false)"),
   a_place_is_not_a_way=("static void try_comparison_method", "double best_place_figure = fit_figures.best_figure > 0 ?", "double best_place_figure = false ?"))
of("master/look/pixels.c", "tests/unit/look/test_readers",
   the_mean_record_stays=("static void compare_channel", "subtract_mean_record(g, g->channel_values);", ";"))
of("master/look/labels.c", "tests/unit/look/test_readers",
   zeros_are_not_told_apart=("static void group_by_zeros", "r->gradient_lengths[i] > 0", "false"),
   who_has_no_label_counts=("size_t look_number_classes", "if (label[i] < 0) continue;", ""))
of("master/plan/look.c", "tests/unit/plan/test_look",
   the_table_has_what_was_read=("static void add_findings", "r->look_findings = row_findings & ~(r->findings & ~r->look_findings);", ""),
   a_limit_is_above_itself=("static bool is_above_limit", "look->results[k].figure > readers", "look->results[k].figure >= readers"))
of("master/plan/look.c", "tests/net/operations/test_look.py",
   workers_in_a_row_hide_labels=("static bool does_worker_receive_gradient(", "i > stage && i >", "i == stage + 1 && i >"))
of("master/plan/look_head.c", "tests/net/operations/test_look.py",
   numbers_are_one_class=("static size_t classify_numbers(", "classes[i] += get_numeric_labels", "classes[i] += 0 * get_numeric_labels"),
   constant_numbers_come_first=("static int compare_by_variance(", "x->variance > y->variance ? -1 : 1", "x->variance < y->variance ? -1 : 1"))
of("master/plan/look_text.c", "tests/net/operations/test_look.py",
   every_loss_ignores_a_label=("static void describe_loss(", "if (has_ignored_label && ignored_label >= 0)", "if (ignored_label >= 0)"))
of("master/look/features.c", "tests/unit/look/test_readers",
   chance_takes_nothing=("static double compute_excess_over_chance(", "chance_correlation <= MAX_IGNORED_CHANCE_CORRELATION ? r", "true ? r"),
   one_value_of_many_is_not_seen=("clv_code clv_look_read_features(", "if (chance_figures.pair_correlation <= MAX_USABLE_CHANCE_CORRELATION)", "if (false)"))
of("master/look/clusters.c", "tests/unit/look/test_readers",
   clusters_do_not_move=("static void move_centers(", "scale_to_unit_length(s->centers + k * s->values_per_row, s->values_per_row)", "memset(s->centers, 0, s->values_per_row * sizeof *s->centers)"),
   lengths_count=("static bool scale_to_unit_length(", "(float)((double)v[i] * factor)", "v[i]"))
of("master/plan/look_front.c", "tests/net/operations/test_look.py",
   tokens_are_not_exchanged=("static void exchange_tokens(", "if (!is_pad_in_either) x[", "if (false) x["))
of("master/plan/look_part.c", "tests/net/operations/test_look.py",
   dropout_of_everything_is_left_out=("static bool must_run_as_training(", "|| drops_nearly_all_values(&g->nodes[i])", ""))
of("master/look/labels.c", "tests/unit/look/test_readers",
   the_first_column_alone_is_read=("clv_code clv_look_read_labels(", "CLV_TRY(read_column(&r, k, err));", "CLV_TRY(read_column(&r, 0, err));"))
of("master/plan/look_front.c", "tests/net/operations/test_look.py",
   all_records_repeat=("static bool number_repeated_records(", "return n_different <= n / 2;", "return true;"),
   vectors_were_not_looked_at=("static void set_not_read(", "if (why)", "if (why && code == CLV_OK)"))
of("master/plan/privacy.c", "tests/net/operations/test_egress.py",
   a_worker_sends_on_what_it_was_sent=("static clv_code find_hop_findings(", "v->worker_layers_mix = true;", ""))
of("master/reach/propagate.c", "tests/unit/plan/test_privacy",
   copies_are_two_places=("static void add_to_element_sum(reach_set_pool", "set_number != b->first_set && set_number != b->last_set", "set_number"),
   dropout_leaves_all_places=("static bool is_safe_from_dropout(", "return leaves_two_places(s->from->dropout_rate, n_places, n_elements_per_place);", "return true;"),
   attention_leaves_all_keys=("static int find_sibling_axis(", "if (!leaves_two_places(s->key_dropout_rate, s->from->shape.dim[1], 1)) return 0;", ""),
   a_mixture_is_bare=("static unsigned get_flags_after_layer(", "| REACH_FLAG_MIXED", "| REACH_FLAG_UNMIXED"),
   one_sum_of_known_weights_is_several=("static bool sums_siblings(", "if (!axis || s->from->shape.dim[axis] < 2) return false;", ""))
of("master/reach/uniform_columns.c", "tests/unit/plan/test_privacy",
   what_is_the_same_at_some_positions_is_a_place=("static bool is_repeated_element(", "if (!r->n ||", "if (true ||"),
   a_stride_is_no_window=("static int64_t get_position_distance(", "a->index_relation == REACH_WINDOW ? a->stride : 1", "1"))
of("master/reach/forward.c", "tests/unit/plan/test_privacy",
   what_is_zero_is_a_place=("static reach_element get_constant_element(", "w->origin_factor[k] == 0 ||", ""),
   records_lie_in_one_way=("static clv_code walk_under_all_assumptions(", "if (r.channels_may_be_last || !r.channels_may_be_first)", "if (!r.channels_may_be_first)"),
   a_flat_record_has_no_form=("static clv_code walk_under_all_assumptions(", "w.uses_reshaped_places = true;", ""))
of("master/reach/relations.c", "tests/unit/reach/test_reach",
   padding_is_a_place=("static void add_windows(", ".pad = a->pad[i]", ".pad = 0"),
   groups_are_one=("static void add_groups(", "n_groups > 1", "n_groups > 8"))
of("master/reach/relations.c", "tests/unit/reach/test_reach",
   signs_show_nothing=("static bool reads_own(", "return to == of;", "return false;"),
   factors_show_nothing=("static bool reads_other(", "return to != of;", "return false;"))
of("master/reach/relations.c", "tests/unit/plan/test_privacy",
   scores_show_nothing=("static bool reads_scores(", "return of < 2 || (of == 2 && to < 2);", "return false;"),
   a_norm_gives_one_gradient=("static void spread_along_last(", "add_axes(r, 1, s->in[0].rank - 1);", "add_axes(r, 1, s->in[0].rank);"))
of("master/reach/nodes.c", "tests/unit/plan/test_privacy",
   a_constant_is_a_place=("bool reach_is_constant(", "op->count_normalized(&site) == 1", "op->count_normalized(&site) == 0"))
of("master/reach/returned.c", "tests/unit/reach/test_reach",
   one_factor_is_all_of_it=("static clv_code add_read_share(", "->relate_back) return", "->relate_back && !b) return"),
   what_is_cut_off_is_read=("static clv_code add_factor_share(", "has_zero_element(&b->nonzero_grad)", "b->p < 0"))
of("master/reach/returned.c", "tests/unit/plan/test_privacy",
   the_loss_reads_nothing=("static clv_code set_output_gradient(", "grad->elements[i] == REACH_ZERO_ELEMENT", "i < SIZE_MAX"))
of("master/plan/privacy.c", "tests/unit/plan/test_privacy",
   what_was_sent_is_new=("static bool is_known_to_workers(", "if (b->stages[s + 1].worker >= 0 &&", "if (b->stages[s + 1].worker >= 0 && !b &&"))
of("master/plan/privacy_refuse.c", "tests/unit/plan/test_privacy",
   gradients_with_records_are_sent=("clv_code clv_privacy_check(", "if (record_findings)", "if (record_findings && !b)"))
of("master/reach/forward.c", "tests/unit/plan/test_privacy",
   one_place_has_channels=("static int find_channel_axis(", "s->rank < 3 || n == 1", "s->rank < 3"))
of("master/plan/privacy_describe.c", "tests/unit/plan/test_privacy",
   secret_weights_count_as_known_to_who_reads_tokens=("static bool worker_knows_front_layers(", "return false;", "continue;"),
   known_weights_count_as_secret_to_who_reads_tokens=("static bool worker_knows_front_layers(", "return true;", "return false;"))
