# SPDX-License-Identifier: Apache-2.0
"""Deliberate breaks of the rules of PROTOCOL.md, each with its test; further rows of
breaks.BREAKS."""
from breaks import BREAKS, Break


def rules(path, **edits):
    """Adds breaks of one file: r5_9_a_module=edit is the break named "R5.9 a module"."""
    for test, edit in edits.items():
        section, number, *words = test[1:].split("_")
        BREAKS.append(Break(f"R{section}.{number} {' '.join(words)}", path, [edit], f"tests/net/hostile/test_rules.py {test}"))


CHECK_HEAD, CHECK_COMMIT, CHECK_NEEDED, CHECK_REFERENCE, TAKE_TARGETS = (
    f"static clv_code {name}(" for name in ("check_scalar_fields", "check_commit", "check_needed_calls", "check_reference", "record_targets"))
rules("common/net/wire/frame_check.c",
   r5_2_a_body_of_another_kind=("static clv_code check_bodies(", "if ((bodies & bit) && !((rule->required_bodies | rule->allowed_bodies) & bit))", "if (false)"),
   r5_5_a_flag_that_is_none=(CHECK_HEAD, "if (f->flags & ~flags)", "if (false)"),
   r5_6_a_flag_of_another_kind=(CHECK_HEAD, "if (f->flags && f->kind != CLV_CALL)", "if (false)"),
   r5_7_a_worker_where_none_is_named=(CHECK_HEAD, "if (f->to[0] && (!rule->may_name_worker || has_no_delivery))", "if (has_no_delivery && f->to[0])"),
   r5_8_upstream_of_a_CALL=(CHECK_HEAD, "if (f->n_value_ids) return", "if (false) return"),
   r5_9_a_module_over_255=(CHECK_HEAD, "if (f->module > CLV_WIRE_MODULES)", "if (false)"),
   r5_10_a_scale_that_is_not_finite=(CHECK_COMMIT, "if (!isfinite(f->commit.scale) || !isfinite(f->commit.lr))", "if (false)"),
   r5_11_a_failure_of_code_17=("static clv_code check_failure(", "|| f->failure.code > CLV_UNAUTHENTICATED", ""),
   r5_12_a_context_of_0=(CHECK_HEAD, "if (rule->needs_context && f->context == 0)", "if (false)"),
   r5_13_a_message_of_0=(CHECK_HEAD, "if (rule->needs_message_id && f->message_id == 0)", "if (false)"),
   r5_15_a_call_of_id_0=(CHECK_NEEDED, "if (!call->call_id)", "if (false)"),
   r5_16_a_root_that_is_not_finite=(CHECK_NEEDED, "if (!isfinite(call->root_gradient))", "if (false)"),
   r5_17_more_contributions=(CHECK_NEEDED, "if (call->n_contributions > CLV_WIRE_CONTRIBUTIONS)", "if (false)"),
   r5_20_a_target_of_order_4096=(CHECK_NEEDED, "|| t->contribution_index >= CLV_WIRE_CONTRIBUTIONS", ""),
   r5_22_positions_that_do_not_ascend=("static clv_code check_positions(", "(!input || (position && position < input))", "true"),
   r5_23_a_position_of_a_step_not_taken=(CHECK_COMMIT, "if (f->commit.step_position && !f->commit.applies_step)", "if (false)"),
   r5_24_a_reference_of_id_0=(CHECK_REFERENCE, "if (names_reference && (!f->reference.ref_id || !f->reference.fork_id))", "if (false && names_reference)"),
   r5_26_early_where_it_means_nothing=(CHECK_REFERENCE, "(f->reference.owner_lacks_fork && f->kind != CLV_REF_FETCH && f->kind != CLV_REF_USE) ||", ""),
   r5_27_a_gradient_of_order_4096=("static clv_code check_kind_rule(", "if (f->kind == CLV_GRADIENT && f->contribution_index >= CLV_WIRE_CONTRIBUTIONS)", "if (false)"),
   r5_28_an_item_behind_the_last=("static clv_code check_state(", "|| (is_item && f->state.item_index >= f->state.n_items)", ""))
rules("common/net/wire/session.c",
   r2_1_an_epoch_of_0=("clv_code clv_wire_open_request_decode(", "if (!from->epoch) return", "if (false) return"))
rules("common/engine/context_pass.c",
   r6_6_a_place_that_is_not_there=("static clv_code record_gradient(", "if (is_announced && f->contribution_index >= v->producer->n_contributions)", "if (false && is_announced)"),
   r6_7_a_phase_that_is_not_the_next=("static clv_code begin_phase(", "if (f->backward_pass_number != next)", "if (false)"),
   r6_8_a_target_that_is_no_input=(TAKE_TARGETS, "if (c->arg[t->input_index] && c->arg[t->input_index] != t->value_id)", "if (false)"),
   r6_9_an_input_without_a_gradient=(TAKE_TARGETS, "|| !(c->input_grads >> t->input_index & 1)", ""))
rules("common/engine/context.c",
   r6_25_a_CALL_of_the_module_before=("clv_module *clv_contexts_module_of_frame(", "m && m->o.generation == f->module_generation", "m"))
rules("common/engine/context_change.c",
   r6_26_an_APPLY_of_the_module_before=("static clv_code check_generation(", "m->o.generation == f->module_generation", "true"))
rules("common/engine/node_modules.c",
   r2_11_loaded_of_an_earlier_generation=("static clv_code check_slot(", "n->next_generation[index] <= generation", "true"),
   r6_28_a_module_that_is_in_use=("static clv_code check_unused(", "if (clv_contexts_is_module_in_use(n->contexts, index))", "if (false)"))
rules("common/engine/reference/rref_owner.c",
   r12_3_a_wrong_key=("int clv_rref_on_fork", "e && e->key != m->key", "false && e->key"))
rules("common/net/wire/frame_check.c",
   r5_38_a_gradient_of_no_context=("static clv_code check_state(", "if (is_gradients && f->kind == CLV_STATE_PUT && !f->context)", "if (false)"))
rules("common/net/wire/frame_check.c",
   r5_39_a_file_that_is_a_path=("static clv_code check_file_name(", "if (!clv_is_file_name(f->state.item_or_file_name))", "if (false)"),
   r5_40_a_file_of_gradients=("static clv_code check_file_name(", "if (f->state.part == CLV_STATE_GRADIENTS)", "if (false)"))
rules("worker/store/folder.c",
   r6_32_a_file_that_is_not_there=("clv_code clv_state_folder_lock(", "strlen(identity), &ret->identity", "0, &ret->identity"),
   r3_21_a_kept_file_of_another_identity=("clv_code clv_state_folder_lock(", "strlen(identity), &ret->identity", "1, &ret->identity"))
rules("common/net/wire/kept.c",
   r3_18_kept_requests_that_contradict_themselves=("static clv_code check_request(", "CLV_TRY(check_kept_kind(m, err));", ";"))
rules("worker/store/states_read.c",
   r3_19_a_range_behind_the_end_of_a_kept_file=("static clv_code check_range(", "if (offset <= file_bytes && length <= file_bytes - offset)", "if (true)"),
   r3_20_a_kept_file_that_changed=("clv_code clv_states_read(", "if (version && version != ret_status->version)", "if (false)"))
rules("worker/store/state_claims.c",
   r6_34_more_than_its_quota=("clv_code clv_state_reserve_bytes(", "bool is_within_quota = used_bytes <= max_bytes && needed_bytes <= max_bytes - used_bytes;", "bool is_within_quota = true;"))
rules("common/engine/node_files.c",
   r6_41_a_load_of_another_digest=("static clv_code open_file(", "if (code == CLV_OK) code = check_digest(f, *ret, err);", ""))
rules("common/net/wire/frame_check.c",
   r5_43_a_cache_of_nothing=("static clv_code check_cached_rows(", "if (f->cached.keep_s < 1 || f->cached.keep_s > CLV_WIRE_CACHED_MAX_S)", "if (false)"),
   r5_44_a_cache_without_numbers=("static clv_code check_cached_rows(", "if (rows->dtype != CLV_I64 || rows->shape.rank != 1 || rows->shape.dim[0] < 1)", "if (false)"))
rules("common/engine/node_caches.c",
   r6_37_a_cache_of_another_worker=("clv_code clv_node_on_cached(", "if (!p->received_by || !clv_node_is_master(n, p->received_by))", "if (false)"))
rules("worker/store/caches.c",
   r6_38_rows_that_cannot_be=("static clv_code check_rows(", "if (rows[i] < 0 || (uint64_t)rows[i] >= c->n_records)", "if (false)"),
   r6_39_a_cache_over_its_quota=("static clv_code check_quota(", "if (u.bytes <= max_bytes && bytes <= max_bytes - u.bytes)", "if (true)"),
   r6_40_rows_that_are_not_there=("static clv_code get_row(", "if (m.is_stored != 1)", "if (false)"))
rules("common/engine/context_gradients.c",
   r6_29_a_gradient_written_in_a_pass=("clv_code clv_contexts_find_gradient_item(", "if (ctx && ctx->pass_state != PASS_NONE)", "if (false)"))
