# SPDX-License-Identifier: Apache-2.0
"""Deliberate breaks, see breaks.py. They switch off each guard once: the guards of TLS, of requests
of a peer, a file or a caller, of values that leave the host, and of runs and their files."""
from breaks import of

RET_OK = "return CLV_OK; "


def first(inside, line, do):
    """An edit that puts `do` before the line."""
    return inside, line, f"{do} {line}"


# ---- TLS and connections -------------------------------------------------------------------------
of("common/net/tls/floor.c", "tests/unit/tls/test_floor",
   no_floor_is_installed=first("clv_code clv_tls_set_min_version(", "CLV_AUTO(conf_freep) CONF *conf", RET_OK))
of("common/net/rpc/credentials.c", "tests/unit/rpc/test_identity",
   a_peer_is_whom_grpc_names=("static grpc_auth_property_iterator peer_uris(", "grpc_auth_context_find_properties_by_name(context, GRPC_PEER_URI_PROPERTY_NAME)",
                              "grpc_auth_context_peer_identity(context)"),
   any_key_fits_a_checked_certificate=("static clv_code digest_pem(", "pem->key, strlen(pem->key)", "pem->ca, strlen(pem->ca)"))
of("common/net/rpc/peers.c", "tests/unit/rpc/test_identity",
   wasted_calls_are_free=("static rpc_refusal count_wasted_call(", "entry->n_wasted_calls++;", "return RPC_REFUSAL_WITH_STATUS;"))
of("worker/accept_guard.c", "tests/unit/rpc/test_accept_guard", grpc_accepts_by_itself=("", '__asm__("accept4")', '__asm__("other_accept4")'))
of("worker/read_guard.c", "tests/unit/rpc/test_read_guard", grpc_reads_by_itself=("", '__asm__("SSL_read")', '__asm__("other_SSL_read")'))
of("common/net/tls/accepted.c", "tests/unit/tls/test_accepted",
   nobody_is_asked_for_a_place=first("static int on_verify(", "entry *e =", "return ok;"),
   contexts_are_not_verified=("", "SSL_CTX_set_cert_verify_callback(parent, verify_chain, NULL);", ""),
   tickets_resume=("", "SSL_set_options(ssl, SSL_OP_NO_TICKET); SSL_set_num_tickets(ssl, 0);", ""),
   any_usage_is_a_clients=first("static bool cert_has_client_usage(", "return clv_tls_cert_usage", "return true;"),
   a_full_table_sheds_nobody=("static bool make_room_for_connection(", "if (!admission.decide_admission || n_live < admission.max_connections) return true;", "return true;"),
   open_connections_outlive_a_revocation=first("", "e->decision = CLV_TLS_REVOKED; shut_connection(e); if (ended) ended(user, e->uri); n_ended++;", "continue;"))
of("worker/service/eviction.c", "tests/net/operations/test_revoke.py revoked_caller_is_disconnected_at_once",
   sessions_outlive_a_revocation=("static void mark_revoked(", "s->is_closing = true;", ""))
of("worker/admission.c", "tests/net/operations/test_connections.py connections_over_an_identity_quota_are_refused",
   connections_have_no_quota=("static clv_tls_decision decide_by_quota(", "h->n_connections >= h->max_connections", "h->max_connections == 0"))
of("worker/admission.c", "tests/net/operations/test_connections.py http2_frame_floods_close_the_connection",
   who_has_flooded_comes_back_at_once=("static void on_flood(", "clv_now_ns() + FLOOD_REFUSAL_S * 1000000000ull", "0"))
of("common/net/tls/accepted.c", "tests/net/operations/test_connections.py http2_frame_floods_close_the_connection",
   a_flooding_connection_stays=("static void cut_flooding_connection(", "shut_connection(e);", ""))
of("common/net/tls/frames.c", "tests/unit/tls/test_frames",
   frames_are_free=("static const char *charge_bucket(", "f->bucket_levels[bucket] += amount;", "f->bucket_levels[bucket] += 0 * amount;"))
of("common/net/tls/revoke.c", "tests/unit/tls/test_crl",
   a_revoked_certificate_is_admitted=("static clv_tls_decision decide_by_list(", "crl && clv_tls_crl_has_cert(crl, issuer, serial)", "crl && !serial"),
   a_list_that_has_ended_is_enough=("static clv_tls_decision decide_by_list(", "crl && clv_tls_crl_check_expiry(crl, issuer, err) != CLV_OK", "crl && !issuer"))
of("common/net/tls/revoke.c", "tests/unit/tls/test_accepted",
   a_revoked_worker_is_dialled=first("", "if (v == CLV_TLS_ADMITTED) return 1;", "v = CLV_TLS_ADMITTED;"))
of("common/net/tls/signed.c", "tests/unit/tls/test_signed",
   any_signer_will_do=("", "CMS_BINARY)", "CMS_BINARY | CMS_NO_SIGNER_CERT_VERIFY)"),
   no_signer_will_do=first("", "if (n != 1) return clv_fail", "if (n == 0) return CLV_OK;"))

# ---- limits on requests and on values of peers and files -----------------------------------------
of("common/base/log_limit.c", "tests/unit/base/test_log_limit",
   lines_are_never_too_many=first("static bool is_over_limit(", "return e->n_written", "return false;"))
of("common/base/digest.c", "tests/unit/base/test_base",
   a_key_can_be_read_backwards=first("", "if (code == CLV_OK) memcpy(ret->bytes, digest.bytes, sizeof ret->bytes);", "memcpy(digest.bytes, seed, sizeof *seed);"))
of("common/base/memory.c", "tests/unit/engine/test_charge",
   a_caller_who_left_is_waited_for=first("", "if (!cancel_hook || !cancel_hook->should_stop(cancel_hook->user)) return CLV_OK;", "cancel_hook = NULL;"))
of("common/net/wire/scan.c", "tests/unit/wire/test_unary",
   messages_take_any_memory=[("static clv_code check_memory_budget(", "s->n_fields > CLV_SCAN_FIELDS", "false"),
                             ("static clv_code check_memory_budget(", "s->memory_bytes > 2 * message_bytes + CLV_SCAN_BUDGET", "false"),
                             ("", "pieces, n_pieces, max_bytes, err", "pieces, n_pieces, SIZE_MAX, err", "common/net/wire/unary.c")])
of("common/net/wire/failure.c", "tests/unit/wire/test_failure",
   a_failure_keeps_its_text_abroad=first("", "rebuild_failed_op(f->failure.detected_at, failed_op);", "what = f->failure.text;"))
of("common/net/wire/module.c", "tests/unit/wire/test_unary",
   any_number_of_keys_is_taken=("static clv_code decode_node_keys(", "from->keys.len != m->graph.n_nodes * sizeof *m->node_keys", "!from"))
of("common/net/fair/account.c", "tests/unit/fair/test_account", quotas_have_no_end=first("", "do {", "limit = 0;"))
of("common/net/fair/scheduler.c", "tests/unit/fair/test_scheduler", cores_are_not_shared=first("", "if (!s) return true;", "s = NULL;"))
of("common/net/rpc/end_texts.c", "tests/unit/rpc/test_stream", damage_is_any_end=("", '{"Stream removed", END_DAMAGED},', ""))
of("common/model/config/worker.c", "tests/unit/config/test_worker",
   a_lease_ends_before_its_caller=first("static clv_code check_lease_and_timeout(", "if (c->limits.lease_ms", RET_OK))
of("worker/store/epochs.c", "tests/unit/store/test_epochs",
   an_older_attempt_goes_on=("static clv_code check_epoch(", "previous_entry && x->epoch < previous_entry->epoch", "previous_entry && !x"),
   a_session_has_two_epochs=("static clv_code parse_line(", "find_entry(e, x.identity, x.session_id) < e->n_entries", "false"),
   a_check_reads_no_epochs=("static clv_code open_epochs(", "if (code == CLV_OK && state_dir)", "if (code == CLV_OK && makes_missing && state_dir)"),
   a_check_makes_the_file=("clv_code clv_epochs_check(", "open_epochs(state_dir, false", "open_epochs(state_dir, true"),
   a_line_ends_at_its_nul=("static clv_code parse_line(", "strlen(line) != len", "len > SIZE_MAX - 1"),
   epochs_are_read_as_scanf_does=("static bool parse_entry(", "memcmp(rewritten.data, line, rewritten.len - 1) == 0", "true"))
of("master/run/run_data.c", "tests/unit/run/test_records",
   a_set_has_two_digests=("clv_code clv_data_digests_parse(", "find_digest(&digests, digests.list[digests.n].name)", "false"))
of("master/data/scan.c", "tests/unit/data/test_scan",
   any_number_is_finite=("", "!(__builtin_fabsf((float)v[i]) <= FLT_MAX)", "v[i] == v[i] + 1 && v[i] == v[i] - 1 && sizeof(type) == 0"))

# ---- links and the engine ------------------------------------------------------------------------
of("common/net/link/pace.c", "tests/unit/link/test_load", nothing_is_settled=first("static void assume_bytes_received(", "memcpy(", "return;"),
   each_pause_is_measured=("bool clv_pace_take_next_chunk", "n_bulk_lanes && is_due", "n_bulk_lanes"))
of("common/net/link/link_state.c", "tests/unit/link/test_tables", a_link_ends_again=("", "if (!n.is_first_end) return;", ""))
of("common/net/link/send_queue.c", "tests/unit/link/test_tables",
   an_abort_waits=("", "if (is_urgent) return SEND_NOW;", ""),
   a_message_takes_the_whole_credit=("static uint64_t max_packet_bytes(", "return CLV_MAX(max_inline_bytes, d->granted_credit - max_inline_bytes);", "return d->granted_credit + 0 * max_inline_bytes;"),
   small_frames_overtake=first("", "bool must_wait = bytes > d->available_credit", "has_queue = false;"))
of("common/net/link/recv_window.c", "tests/unit/link/test_tables",
   packets_wait_without_end=first("", "r->n_packets += !is_over_limit;", "is_over_limit = false;"),
   credit_is_passed=first("", "if (!is_over_credit) r->unreturned_bytes += bytes;", "is_over_credit = false;"))
of("common/engine/module_memory.c", "tests/unit/engine/test_charge",
   memory_is_charged_when_it_is_taken=[("", "CLV_TRY(charge_known_memory(m, o, err));", ""), first("", "m->version = 1;", "CLV_TRY(charge_known_memory(m, o, err));")])
of("common/engine/context_work.c", "tests/unit/engine/test_work",
   all_runs_at_once=first("", "if (w->kind == WORK_VOTE) return are_voters_idle(e, w);", "return true;"))
of("common/engine/context_queue.c", "tests/unit/engine/test_work",
   younger_calls_that_run_are_overtaken=("", "other->out->id > c->out->id && other->call_state <= CALL_WAITING", "other->out->id > c->out->id"))
of("common/engine/context_frames.c", "tests/unit/engine/test_work", no_frame_waits_for_work=first("", "switch (f->kind) {", "return false;"))
of("common/engine/inbox.c", "tests/unit/engine/test_inbox",
   a_rest_has_no_begin=("", "if (wait_from && b->wake_at_ns == UINT64_MAX) b->wake_at_ns = wait_from + CLV_COALESCE_NS;", ""),
   a_rest_has_no_end=first("", "bool woke_early = true;", "coalesce_end_ns = UINT64_MAX;"),
   a_rest_goes_on=("", "b->is_coalescing = false;", ""))
of("common/engine/inbox.c", "tests/unit/engine/test_executor",
   an_end_does_not_wait_for_work=("", "while (b->n_running || b->n_copies) pthread_cond_wait(&b->item_arrived, &b->lock);", ""))
of("common/engine/context_wake.c", "tests/unit/engine/test_inbox",
   who_meets_is_not_woken=first("", "if (!wait_predicates[f->kind] || p->is_over_quota", "queued = 0;"),
   calls_that_wait_hold_up_no_end=first("", "if (e->counts.calls_waiting) return false;", "return c != NULL;"),
   steps_that_wait_hold_up_no_end=("", "if (!g->mod->o.has_no_revert) return false;", ""))

# ---- values that leave ---------------------------------------------------------------------------
of("master/plan/privacy_refuse.c", "tests/unit/plan/test_privacy",
   nothing_is_refused=first("", "clv_findings uncertain_findings = b->look.uncertain_findings; for", RET_OK))
of("master/reach/forward.c", "tests/unit/plan/test_privacy",
   the_first_addend_is_enough=first("", "s.from = &w->values[p][n->in[i]];", "if (ret->elements) break;"))
of("master/plan/privacy.c", "tests/unit/plan/test_privacy",
   all_weights_are_secret=("", "return clv_privacy_why_hides_nothing(v, k, is_for_labels) ? CLV_WEIGHTS_KNOWN : CLV_WEIGHTS_SECRET;", "return CLV_WEIGHTS_SECRET;"))
of("master/reach/propagate.c", "tests/unit/plan/test_privacy", one_place_is_several=first("", "if (s->has_one_output) return s->has_several_inputs;", "return set_number != REACH_EMPTY_SET;"))
of("master/plan/look.c", "tests/unit/plan/test_look",
   what_the_look_found_is_not_refused=("", "clv_privacy_forbidden_findings(b->config, certain_findings)", "clv_privacy_forbidden_findings(b->config, certain_findings & 0)"))
of("master/egress/gate.c", "tests/unit/egress/test_gate",
   the_gate_asks_no_privacy=("cleave_status clv_gate_check_sending(", "if ((status = check_privacy(g, r, s, error)) != CLEAVE_OK) return status;", ""),
   the_gate_asks_no_policy=("cleave_status clv_gate_check_sending(", "if ((status = check_policy(g, r, s, error)) != CLEAVE_OK) return status;", ""),
   a_tensor_of_any_form_leaves=("static const clv_egress_row *find_row(", "&& has_same_type_and_shape(g, &g->rows[k], s)", ""),
   a_refusal_hides_the_type=("static cleave_status deny_unplanned_tensor(", "clv_dtype_name((clv_dtype)s->dtype)", '""'),
   state_that_nobody_expects_leaves=("static clv_egress_flow *find_state_flow(", "|| strcmp(f->name, s->name) != 0", ""))
of("worker/service/takeover.c", "tests/python/test_runtime.py",
   sessions_of_killed_programs_stay=("bool clv_session_close_abandoned(", "if (!old_session) return false;", "return false;"),
   any_name_takes_a_session_over=("static bool is_of_same_program(", "&& strcmp(a->name, b->name) == 0", ""),
   a_connected_session_is_taken_over=("static uint64_t get_detached_ms(", "if (!clv_link_is_mending(s->master_link)) return 0;", "if (!clv_link_is_mending(s->master_link)) return ABANDONED_MS;"))
HELD = "tests/net/api/test_api_held.py"
of("master/egress/policy.c", HELD,
   programs_need_no_permission=("clv_code clv_policy_check_programs(", "if (c->programs != CLV_PROGRAMS_DECLARED)", "if (c->programs > CLV_PROGRAMS_DECLARED)"))
of("master/egress/program_gate.c", HELD,
   undeclared_tensors_leave=("cleave_status clv_program_gate_check(", "&& (g->policy || g->n_rows)", "&& !g"),
   declared_tensors_have_any_form=("static bool is_row_of(", "&& has_declared_shape(d, s)", ""),
   a_program_goes_on_after_a_refusal=("cleave_status clv_program_gate_check(", "g->refusal.code != CLV_OK &&", "!g &&"),
   the_policy_counts_no_bytes_of_programs=("cleave_status clv_program_gate_charge(", "if (g->policy && s->kind != CLEAVE_SENDING_FAILURE)", "if (!g)"),
   what_programs_send_is_not_recorded=("static clv_code charge_to_record(", "if (!g->record)", "if (g)"),
   undeclared_leaves_show_nothing=("static clv_findings worst_findings(", "return CLV_FINDING_RAW_INPUT | (dtype == CLEAVE_I64 ? CLV_FINDING_LABELS : 0u);", "return dtype == CLEAVE_I64 ? CLV_FINDING_LABELS : 0u;"))
of("deploy/python/src/cleave/_runtime.py", "tests/python/test_runtime.py",
   python_declares_the_worst_alone=("", "self._declare_in_library(row, shows, hiding_layers)", "self._declare_in_library(row, 0, hiding_layers)"))
of("master/api/extra/open.c", "tests/net/api/test_api_shapes.py",
   hops_of_programs_are_not_recorded=("static void note_direct_transfer(", "if (*peer && bytes)", "if (!program)"))
of("master/api/extra/open.c", HELD,
   programs_need_no_record=("static cleave_status begin_program(", "if (p->policy && !o->run)", "if (p->policy && !o)"))
of("master/api/core/may_send.c", HELD,
   outputs_of_a_module_are_one_row=("static clv_code describe_value(", "api_program_module_name(v->module, &ret->input)", "api_program_module_name(v->module, &(uint32_t){0})"),
   the_program_is_asked_before_the_gate=("static clv_code ask_gate(", "if (rt->gate.check_tensor(", "if (rt->may_send && rt->may_send(rt->user, sending, &why) == CLEAVE_OK && rt->gate.check_tensor("))
of("master/egress/table_row.c", "tests/unit/egress/test_gate",
   tokens_are_recorded_as_activations=("clv_egress_kind clv_egress_record_kind(", "findings & CLV_FINDING_TOKENS ? CLV_EGRESS_TOKENS : CLV_EGRESS_ACTIVATION", "CLV_EGRESS_ACTIVATION"))
of("master/api/core/secrets.c", "tests/unit/api/test_secrets",
   secret_weights_may_be_there=first("clv_code cleave_secrets_check(", "for (size_t i = 0; h->n_artifacts", RET_OK))
of("master/egress/policy.c", "tests/unit/egress/test_egress_policy",
   pictures_are_permitted=first("static clv_code check_findings(", "for (size_t i = 0; i < CLV_COUNT(permit_keys); i++) {", "findings &= ~(clv_findings)CLV_FINDING_PICTURE;"),
   bytes_have_no_limit=("", "if (bytes > limit || sent_bytes > limit - bytes) return false;", ""),
   any_figure_is_permitted=first("", "if (limit >= 1 || (r->share", RET_OK))
of("master/egress/policy_file.c", "tests/unit/egress/test_egress_policy",
   anybody_may_own_a_policy=first("static bool is_writable_by_root_only(", "return st->st_uid == 0", "return true;"),
   root_needs_no_signature=("", "if (!needs_signature) return CLV_OK;", RET_OK))
of("master/egress/ledger_file.c", "tests/unit/egress/test_ledger", nothing_is_written_down=first("static clv_code add_items(", "CLV_TRY(open_locked_for_append(&f, err));", RET_OK))
of("master/egress/page_formats.c", "tests/unit/egress/test_egress_page",
   names_are_marks=first("", "for (const char *p = clean.data; p && *p; p++) {", 'clv_bytes_puts(out, clean.data ? clean.data : ""); return;'))
of("master/egress/record.c", "tests/unit/egress/test_egress_record",
   allowances_come_before_their_line=first("", "CLV_TRY(flush_lines(r, has_new_allowances, err)); for", "for (clv_egress_flow *f = r->flows; f; f = f->next) add_unwritten_to_balance(f);"),
   half_a_line_stays=("", "if (text.len > complete_bytes && ftruncate(r->fd, (off_t)complete_bytes) != 0)", "if (r->fd < 0)"),
   a_record_may_be_removed=("", "if (!st.st_nlink)", "if (r->fd < 0)"),
   attempts_are_numbered_without_a_lock=("static clv_code write_attempt(", "CLV_TRY(lock_file(r, err)); fd = r->fd;", ""))
of("master/egress/record_line.c", "tests/unit/egress/test_egress_read",
   lines_of_another_form_are_read=("", "rewritten.len != len + 1 || memcmp(rewritten.data, text, len) != 0", "rewritten.len == SIZE_MAX"))

# ---- runs ----------------------------------------------------------------------------------------
of("master/plan/data_check.c", "tests/unit/plan/test_data_fits",
   any_data_fit=first("", "if (d->train && d->test) CLV_TRY(check_same_shapes(", "if (b) return CLV_OK;"))
of("master/history/run_folder.c", "tests/unit/history/test_folder", a_move_leaves_no_note=("", "CLV_TRY(make_numbered_folder(run_dir, &m.number, &aside, err)); CLV_TRY(write_note(run_dir, &m, err));", "CLV_TRY(make_numbered_folder(run_dir, &m.number, &aside, err));"))
of("master/history/run_lock.c", "tests/unit/history/test_folder",
   fresh_deletes_a_finished_run=first("", "c->keeps_earlier_run = is_worth_keeping(c);", "return clv_run_folder_clear(c->dir, err);"),
   a_refused_run_takes_the_place=first("", "if (c->has_moved_earlier_run) CLV_TRY(clv_run_folder_undo_move(c->dir, err));", RET_OK))
of("master/history/folder_lock.c", "tests/unit/history/test_folder", a_lock_that_is_gone_holds=first("", "return fstat(fd, &st) != 0 || st.st_nlink == 0;", "return false;"))
of("master/run/run_begin.c", "tests/unit/run/test_begin",
   a_finished_run_begins_again=first("", "bool is_finished = clv_run_lock_is_finished(r->lock);", RET_OK),
   a_lost_checkpoint_is_not_missed=("", "if (clv_run_lock_has_checkpoint(r->lock)) return restore_sealed_copy(r, fail_missing_checkpoints(r, err), err);", ""))
of("master/run/run_egress.c", "tests/unit/run/test_begin",
   a_lost_table_is_an_empty_one=first("", "if (code == CLV_OK || (code == CLV_NOT_FOUND && !clv_checkpoint_has_any(dir))) return code;", "if (code != CLV_OK) return CLV_NOT_FOUND;"))
of("common/model/weights/checkpoint_read.c", "tests/unit/weights/test_checkpoint",
   the_best_is_pruned=first("", "for (size_t i = 0; i < l.n; i++) { CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL; bool can_keep_more", "protected_step = CLV_CHECKPOINT_NONE;"))
of("master/run/run_best.c", "tests/unit/run/test_best", infinity_is_best=("", "if (!isfinite(candidate->value)) return false;", ""))
of("master/run/run_classes.c", "tests/unit/run/test_records", damaged_classes_are_none=first("static clv_code fail_damaged_line(", "return clv_fail", RET_OK))
of("master/plan/policy_check.c", "tests/unit/plan/test_hops",
   hops_are_named_by_their_stage=("clv_egress_row clv_blueprint_hop_row(", "sender->gradient_findings : sender->hop_findings", "sender->gradient_findings : sender->output_findings"),
   hops_need_no_policy=("static clv_code check_hop(", "t.findings = r.findings; return clv_policy_check_tensor(b->policy, &t, err);", "return CLV_OK;"))
of("master/train/modules.c", "tests/net/hostile/test_hostile_answers.py bulk_lanes_are_opened_only_where_packets_may_need_chunks",
   small_sessions_open_bulk_lanes=("static uint32_t choose_bulk_lane_count(", "return 0;", "return CLEAVE_BULK_LANES;"),
   chunks_have_no_bulk_lanes=("static uint32_t choose_bulk_lane_count(", "return CLEAVE_BULK_LANES;", "return 0;"))
of("tests/run-tests", "tests/checks/test_simulated.py",
   a_program_that_cannot_be_started_is_left_out=("", "                    finish(test)\n            for", "                    pass\n            for"))
of("tests/run-tests", "tests/checks/test_reports.py",
   no_leak_is_looked_at_again=("", "return wanted", "return False"),
   passed_tests_push_out_failed_ones=("", "not ((m := LINE.match(line)) and", "not ((m := None) and"))
of("master/api/core/events.c", "tests/net/hostile/test_hostile_answers.py unknown_references_are_ignored_or_not_found",
   references_of_workers_go_unanswered=("static bool on_reference(", "clv_node_post(rt->node, p); return true;", "return false;"))
