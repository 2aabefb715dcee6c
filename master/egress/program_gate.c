/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate of programs on libcleave. A program declares rows: kinds of tensors that it will send,
 * and what they show. Before a tensor is sent, clv_program_gate_check finds its row and asks the
 * policy of the host, and clv_program_gate_charge takes its bytes from the policy's epoch and from
 * an allowance of the record. The gate refuses a tensor without a row if the host has a policy or
 * the program has declared any row; otherwise it assumes the worst findings that such a tensor can
 * have.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/egress/egress_int.h"

_Static_assert((int)CLEAVE_SHOWS_PICTURE == (int)CLV_FINDING_PICTURE &&
                   (int)CLEAVE_SHOWS_FRONT_KNOWN == (int)CLV_FINDING_FRONT_KNOWN &&
                   (int)CLEAVE_SHOWS_TOKENS == (int)CLV_FINDING_TOKENS &&
                   (int)CLEAVE_SHOWS_RAW_INPUT == (int)CLV_FINDING_RAW_INPUT &&
                   (int)CLEAVE_SHOWS_LABELS_READABLE == (int)CLV_FINDING_LABELS_READABLE &&
                   (int)CLEAVE_SHOWS_LABELS == (int)CLV_FINDING_LABELS,
               "programs declare findings under the numbers of clv_finding");

enum { MAX_ROWS = 4096 };

/* A row that the program has declared, with copies of its texts. */
typedef struct declared_row {
  cleave_declaration declaration;
  clv_findings findings;
  char worker[CLV_EGRESS_MAX_NAME + 1], module[CLV_EGRESS_MAX_NAME + 1],
      name[CLV_EGRESS_MAX_NAME + 1];
} declared_row;

/* A row of the egress record: its key (receiver and tensor), and its flow, which counts the bytes
 * that may still be sent. */
typedef struct tensor_flow {
  clv_egress_key key;
  clv_egress_flow *flow;
} tensor_flow;

struct clv_program_gate {
  const clv_session_config *config;
  clv_policy *policy;        /* policy of the host; NULL: none */
  clv_egress_record *record; /* egress record of the program; NULL: none */
  declared_row **rows;       /* [n_rows] in the order of their declaration */
  size_t n_rows;
  tensor_flow *flows; /* [n_flows] rows of the record, each with the bytes that may still be sent */
  size_t n_flows;
  /* index in `flows` of the flow that was charged last; a search begins there */
  size_t last_found_flow;
  /* first refusal of a tensor, by its row or by the policy; after it no tensor is sent any more;
   * code CLV_OK: no tensor was refused */
  clv_err refusal;
};

/* ---- making and freeing the gate of a program ------------------------------------------------ */

clv_code clv_program_gate_new(const clv_session_config *config, clv_policy *policy,
                              clv_egress_record *record, clv_program_gate **ret, clv_err *err) {
  clv_program_gate *g;
  CLV_TRY(clv_alloc(1, sizeof *g, &g, err));
  *g = (clv_program_gate){.config = config, .policy = policy, .record = record};
  *ret = g;
  return CLV_OK;
}

void clv_program_gate_free(clv_program_gate *g) {
  if (!g) return;
  for (size_t i = 0; i < g->n_rows; i++) free(g->rows[i]);
  free(g->rows);
  free(g->flows);
  free(g);
}

void clv_program_gate_begin_epoch(clv_program_gate *g) { clv_policy_begin_epoch(g->policy, 0); }

/* ---- kind, findings and text of a tensor ----------------------------------------------------- */

/* Returns the worst findings that a tensor of this kind and dtype can have. Values of dtype i64 may
 * be labels or tokens. */
static clv_findings worst_findings(cleave_sending_kind kind, cleave_dtype dtype) {
  if (kind == CLEAVE_SENDING_WEIGHTS) return CLV_FINDING_MIXED;
  if (kind == CLEAVE_SENDING_GRADIENT) return CLV_FINDING_LABELS_READABLE;
  return CLV_FINDING_RAW_INPUT | (dtype == CLEAVE_I64 ? CLV_FINDING_LABELS : 0u);
}

/* Returns the kind under which a policy checks a tensor. A tensor that shows only records has kind
 * INPUT, one that shows only labels has kind LABELS. */
static clv_egress_kind kind_in_policy(const cleave_sending *s, clv_findings findings) {
  if (s->kind == CLEAVE_SENDING_FAILURE) return CLV_EGRESS_FAILURE;
  if (s->kind == CLEAVE_SENDING_WEIGHTS)
    return s->optimizer ? CLV_EGRESS_STATE : CLV_EGRESS_WEIGHTS;
  if (s->kind == CLEAVE_SENDING_GRADIENT) return CLV_EGRESS_GRADIENT;
  if (s->kind == CLEAVE_SENDING_CACHED) return CLV_EGRESS_CACHED;
  if (s->kind == CLEAVE_SENDING_VALUE) return CLV_EGRESS_ACTIVATION;
  if (findings == CLV_FINDING_LABELS) return CLV_EGRESS_LABELS;
  return findings == CLV_FINDING_RAW_INPUT ? CLV_EGRESS_INPUT : CLV_EGRESS_ACTIVATION;
}

static clv_egress_kind kind_in_record(const cleave_sending *s, clv_findings findings) {
  clv_egress_kind kind = kind_in_policy(s, findings);
  if (kind == CLV_EGRESS_ACTIVATION && (findings & CLV_FINDING_LABELS)) return CLV_EGRESS_LABELS;
  return clv_egress_record_kind(kind, findings);
}

/* Formats the index of a tensor among the inputs or outputs of its module; "" for the first or only
 * output. */
static const char *format_index(const cleave_sending *s, const char *output_prefix, char ret[32]) {
  ret[0] = '\0';
  if (s->kind == CLEAVE_SENDING_LEAF)
    snprintf(ret, 32, " %u", s->input);
  else if (s->input && (s->kind == CLEAVE_SENDING_VALUE || s->kind == CLEAVE_SENDING_GRADIENT))
    snprintf(ret, 32, "%s %u", s->kind == CLEAVE_SENDING_VALUE ? "" : output_prefix, s->input);
  return ret;
}

/* Formats a tensor for messages: "input 0 of module 'far', f32 [32, 64]". */
static const char *format_tensor(const cleave_sending *s, char *text, size_t size) {
  static const char *const tensor_words[] = {
      [CLEAVE_SENDING_LEAF] = "input",        [CLEAVE_SENDING_VALUE] = "the output",
      [CLEAVE_SENDING_GRADIENT] = "gradient", [CLEAVE_SENDING_WEIGHTS] = "state",
      [CLEAVE_SENDING_FAILURE] = "failure",   [CLEAVE_SENDING_CACHED] = "rows to be kept"};
  char index_text[32], shape_text[160];
  clv_shape shape = {.rank = s->rank};
  memcpy(shape.dim, s->shape, sizeof shape.dim);
  snprintf(text, size, "%s%s%s%.128s of module '%.128s', %s %s", tensor_words[s->kind],
           format_index(s, " of output", index_text), *s->name ? " " : "", s->name, s->module,
           s->dtype ? clv_dtype_name((clv_dtype)s->dtype) : "any type",
           clv_shape_format(&shape, shape_text, sizeof shape_text));
  return text;
}

static const clv_remote_spec *find_worker(const clv_session_config *c, const char *name) {
  for (size_t i = 0; i < c->n_workers; i++)
    if (strcmp(c->workers[i].name, name) == 0) return &c->workers[i];
  return NULL;
}

static clv_policy_tensor make_policy_tensor(const clv_program_gate *g, const cleave_sending *s,
                                            const declared_row *r, const char *name) {
  const clv_remote_spec *w = find_worker(g->config, s->worker);
  clv_policy_tensor t = {.name = name,
                         .kind = kind_in_policy(s, r->findings),
                         .findings = r->findings,
                         .n_hiding_layers = r->declaration.hiding_layers,
                         .worker = s->worker,
                         .identity = w ? w->identity : "",
                         .dtype = (clv_dtype)s->dtype,
                         .shape.rank = s->rank};
  memcpy(t.shape.dim, s->shape, sizeof t.shape.dim);
  return t;
}

/* ---- rows that the program has declared ------------------------------------------------------ */

static bool has_declared_shape(const cleave_declaration *d, const cleave_sending *s) {
  if (d->dtype != s->dtype || (d->rank != s->rank && d->rank >= 0)) return false;
  if (d->rank < 0) return true;
  for (int i = 1; i < s->rank; i++)
    if (d->shape[i] != s->shape[i]) return false;
  return s->rank == 0 || !d->shape[0] || s->shape[0] <= d->shape[0];
}

static bool is_row_of(const declared_row *r, const cleave_sending *s) {
  const cleave_declaration *d = &r->declaration;
  if (d->kind != s->kind || strcmp(r->worker, s->worker) != 0 || strcmp(r->module, s->module) != 0)
    return false;
  bool has_name = strcmp(r->name, s->name) == 0;
  if (s->kind == CLEAVE_SENDING_WEIGHTS)
    return d->optimizer == s->optimizer && (has_name || !d->name);
  return has_name && d->input == s->input && has_declared_shape(d, s);
}

/* Returns the first declared row that the tensor belongs to. NULL: there is none. */
static const declared_row *find_row(const clv_program_gate *g, const cleave_sending *s) {
  for (size_t i = 0; i < g->n_rows; i++)
    if (is_row_of(g->rows[i], s)) return g->rows[i];
  return NULL;
}

static clv_code check_declaration(const cleave_declaration *d, clv_err *err) {
  if (d->kind < CLEAVE_SENDING_LEAF || d->kind > CLEAVE_SENDING_WEIGHTS)
    return clv_fail(err, CLV_INVALID,
                    "a row of kind %d: declare a leaf, a value, a gradient or weights",
                    (int)d->kind);
  if (d->shows > CLEAVE_SHOWS_MIXED)
    return clv_fail(err, CLV_INVALID,
                    "shows is %u; it is a sum of cleave_shows, in which CLEAVE_SHOWS_MIXED stands "
                    "alone",
                    d->shows);
  if (d->kind == CLEAVE_SENDING_WEIGHTS) return CLV_OK;
  if (d->dtype != CLEAVE_F32 && d->dtype != CLEAVE_I64 && d->dtype != CLEAVE_BF16)
    return clv_fail(err, CLV_INVALID, "a row of dtype %d, which is none", (int)d->dtype);
  if (d->rank < -1 || d->rank > CLEAVE_MAX_RANK)
    return clv_fail(err, CLV_INVALID, "a row of rank %d; ranks are 0 to %d, and -1 is any shape",
                    d->rank, CLEAVE_MAX_RANK);
  for (int i = 0; i < d->rank; i++)
    if (d->shape[i] < 0)
      return clv_fail(err, CLV_INVALID, "extent %d of a row is %lld", i, (long long)d->shape[i]);
  return CLV_OK;
}

static clv_code copy_text(const char *text, const char *field_name,
                          char ret[CLV_EGRESS_MAX_NAME + 1], clv_err *err) {
  size_t len = text ? strlen(text) : 0;
  if (len > CLV_EGRESS_MAX_NAME)
    return clv_fail(err, CLV_INVALID, "the %s of a row has %zu bytes, at most %d are possible",
                    field_name, len, CLV_EGRESS_MAX_NAME);
  memcpy(ret, text ? text : "", len + 1);
  return CLV_OK;
}

static clv_code fill_row(const clv_program_gate *g, const cleave_declaration *d, declared_row *r,
                         clv_err *err) {
  CLV_TRY(check_declaration(d, err));
  CLV_TRY(copy_text(d->worker, "worker", r->worker, err));
  CLV_TRY(copy_text(d->module, "module", r->module, err));
  CLV_TRY(copy_text(d->name, "name", r->name, err));
  if (!find_worker(g->config, r->worker))
    return clv_fail(err, CLV_NOT_FOUND, "a row for '%s', which is no worker of %s", r->worker,
                    g->config->file);
  r->declaration = *d;
  r->findings =
      d->shows ? d->shows & ~(clv_findings)CLEAVE_SHOWS_MIXED : worst_findings(d->kind, d->dtype);
  if (d->kind == CLEAVE_SENDING_WEIGHTS) r->findings = CLV_FINDING_MIXED;
  return CLV_OK;
}

/* Returns a description of the largest tensor that the row permits. If the row does not limit the
 * number of samples, the description has one sample. */
static cleave_sending make_sending_of_row(const declared_row *r) {
  const cleave_declaration *d = &r->declaration;
  cleave_sending s = {.kind = d->kind,
                      .worker = r->worker,
                      .module = r->module,
                      .input = d->input,
                      .name = r->name,
                      .optimizer = d->optimizer};
  if (d->kind == CLEAVE_SENDING_WEIGHTS) return s;
  s.dtype = d->dtype;
  s.rank = CLV_MAX(d->rank, 0);
  memcpy(s.shape, d->shape, sizeof s.shape);
  if (s.rank && !s.shape[0]) s.shape[0] = 1;
  return s;
}

static bool is_same_row(const declared_row *a, const declared_row *b) {
  const cleave_declaration *x = &a->declaration, *y = &b->declaration;
  return x->kind == y->kind && x->input == y->input && x->optimizer == y->optimizer &&
         !x->name == !y->name && x->shows == y->shows && x->hiding_layers == y->hiding_layers &&
         x->dtype == y->dtype && x->rank == y->rank &&
         memcmp(x->shape, y->shape, sizeof x->shape) == 0 && strcmp(a->worker, b->worker) == 0 &&
         strcmp(a->module, b->module) == 0 && strcmp(a->name, b->name) == 0;
}

static bool has_row(const clv_program_gate *g, const declared_row *r) {
  for (size_t i = 0; i < g->n_rows; i++)
    if (is_same_row(g->rows[i], r)) return true;
  return false;
}

clv_code clv_program_gate_declare(clv_program_gate *g, const cleave_declaration *d, clv_err *err) {
  CLV_AUTO(clv_freep) declared_row *r = NULL;
  char name[512];
  CLV_TRY(clv_alloc(1, sizeof *r, &r, err));
  CLV_TRY(fill_row(g, d, r, err));
  if (has_row(g, r)) return CLV_OK;
  if (g->n_rows == MAX_ROWS)
    return clv_fail(err, CLV_EXHAUSTED, "the program has declared %d rows, the most it can",
                    MAX_ROWS);
  cleave_sending s = make_sending_of_row(r);
  clv_policy_tensor t = make_policy_tensor(g, &s, r, format_tensor(&s, name, sizeof name));
  if (clv_policy_check_tensor(g->policy, &t, err) != CLV_OK) {
    if (err) err->code = CLV_DENIED;
    return CLV_DENIED;
  }
  declared_row **grown = reallocarray(g->rows, g->n_rows + 1, sizeof *grown);
  if (!grown) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  g->rows = grown;
  g->rows[g->n_rows++] = clv_steal(&r);
  return CLV_OK;
}

/* ---- the check of a tensor ------------------------------------------------------------------- */

/* Refuses a tensor. From then on clv_program_gate_check refuses every tensor. */
static cleave_status refuse_sending(clv_program_gate *g, const char *text, cleave_error *error) {
  if (g->refusal.code == CLV_OK) clv_fail(&g->refusal, CLV_DENIED, "egress refused: %s", text);
  snprintf(error->text, sizeof error->text, "%.479s", g->refusal.text);
  return error->status = CLEAVE_DENIED;
}

/* Fills *ret with a row for an undeclared tensor: the row has the worst findings that such a tensor
 * can have. */
static const declared_row *make_undeclared_row(const cleave_sending *s, declared_row *ret) {
  memset(ret, 0, sizeof *ret);
  ret->declaration.shows = CLEAVE_SHOWS_WORST;
  ret->findings = worst_findings(s->kind, s->dtype);
  return ret;
}

cleave_status clv_program_gate_check(void *gate, const cleave_sending *s, cleave_error *error) {
  clv_program_gate *g = gate;
  char name[512], text[700];
  declared_row undeclared_row;
  clv_err why;
  if (g->refusal.code != CLV_OK && s->kind != CLEAVE_SENDING_FAILURE)
    return refuse_sending(g, "", error);
  const declared_row *r = find_row(g, s);
  format_tensor(s, name, sizeof name);
  if (!r && s->kind != CLEAVE_SENDING_FAILURE && (g->policy || g->n_rows)) {
    snprintf(text, sizeof text, "%s to %s: the program has declared no such tensor", name,
             s->worker);
    return refuse_sending(g, text, error);
  }
  clv_policy_tensor t =
      make_policy_tensor(g, s, r ? r : make_undeclared_row(s, &undeclared_row), name);
  if (clv_policy_check_tensor(g->policy, &t, &why) != CLV_OK)
    return refuse_sending(g, why.text, error);
  return CLEAVE_OK;
}

bool clv_program_gate_has_declared_findings(const clv_program_gate *g, const cleave_sending *s) {
  const declared_row *r = find_row(g, s);
  return r && (r->declaration.hiding_layers || r->declaration.shows != CLEAVE_SHOWS_WORST);
}

cleave_status clv_program_gate_compare_findings(clv_program_gate *g, const cleave_sending *s,
                                                clv_findings measured_findings,
                                                uint32_t n_hiding_layers, const char *reason,
                                                cleave_error *error) {
  const declared_row *r = find_row(g, s);
  char name[512], text[700], findings_text[CLV_FINDINGS_TEXT_BYTES];
  if (!r) return CLEAVE_OK;
  bool is_covered = (r->findings & CLV_FINDING_RAW_INPUT) || !(measured_findings & ~r->findings);
  if (is_covered && r->declaration.hiding_layers <= n_hiding_layers) return CLEAVE_OK;
  clv_findings_format(measured_findings, findings_text);
  snprintf(text, sizeof text,
           "%.150s to %.60s shows %s behind %u hiding layer%s%s%.200s; its row says less",
           format_tensor(s, name, sizeof name), s->worker, *findings_text ? findings_text : "MIXED",
           n_hiding_layers, CLV_S(n_hiding_layers), *reason ? ": " : "", reason);
  return refuse_sending(g, text, error);
}

/* ---- policy and record of a sent tensor ------------------------------------------------------ */

/* Sets the name of a row of the record, which names the tensor and its findings. */
static void set_key_name(const cleave_sending *s, const declared_row *r, clv_egress_key *ret) {
  char findings_text[CLV_FINDINGS_TEXT_BYTES], index_text[40] = "";
  bool is_leaf = s->kind == CLEAVE_SENDING_LEAF;
  if (s->kind == CLEAVE_SENDING_FAILURE) return;
  if (s->kind == CLEAVE_SENDING_WEIGHTS) {
    snprintf(ret->name, sizeof ret->name, "%.128s", s->name);
    return;
  }
  if (is_leaf || s->input)
    snprintf(index_text, sizeof index_text, "%s %u, ", is_leaf ? "input" : "output", s->input);
  clv_findings_format(r->findings, findings_text);
  snprintf(ret->name, sizeof ret->name, "%s%.16s%s%s%.64s", index_text, s->name,
           *s->name ? ", " : "",
           r->declaration.shows ? "declared by the program: " : "not declared: ",
           *findings_text ? findings_text : "MIXED");
}

static void make_key(const clv_program_gate *g, const cleave_sending *s, const declared_row *r,
                     clv_egress_key *ret) {
  const clv_remote_spec *w = find_worker(g->config, s->worker);
  int first_dim = s->kind == CLEAVE_SENDING_WEIGHTS || s->rank == 0 ? 0 : 1;
  memset(ret, 0, sizeof *ret);
  snprintf(ret->from, sizeof ret->from, "%s", CLV_EGRESS_MASTER);
  snprintf(ret->to, sizeof ret->to, "%.128s", s->worker);
  snprintf(ret->identity, sizeof ret->identity, "%.256s", w ? w->identity : "");
  snprintf(ret->stage, sizeof ret->stage, "%.128s", s->module);
  ret->kind = kind_in_record(s, r->findings);
  set_key_name(s, r, ret);
  if (s->kind == CLEAVE_SENDING_FAILURE) return;
  snprintf(ret->dtype, sizeof ret->dtype, "%s", clv_dtype_name((clv_dtype)s->dtype));
  ret->shape.rank = s->rank - first_dim;
  memcpy(ret->shape.dim, s->shape + first_dim, (size_t)ret->shape.rank * sizeof *s->shape);
}

/* Adds a flow (balance of bytes that may be sent) to the record. The flow's first allowance (grant
 * of bytes) covers the tensor `s` or, for a piece of state that is sent in several parts, the
 * complete piece. */
static clv_code add_flow(clv_program_gate *g, const clv_egress_key *key, const cleave_sending *s,
                         clv_err *err) {
  bool is_state = s->kind == CLEAVE_SENDING_WEIGHTS;
  tensor_flow *grown = reallocarray(g->flows, g->n_flows + 1, sizeof *grown);
  if (!grown) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  g->flows = grown;
  tensor_flow *f = &g->flows[g->n_flows];
  f->key = *key;
  size_t item_bytes = 0;
  if (is_state) CLV_TRY(clv_shape_bytes(&key->shape, (clv_dtype)s->dtype, &item_bytes, err));
  CLV_TRY(clv_egress_flow_new(g->record, key, is_state, &f->flow, err));
  clv_egress_set_step_bytes(f->flow, CLV_MAX(s->bytes, item_bytes));
  g->last_found_flow = g->n_flows++;
  return CLV_OK;
}

/* Takes the tensor's bytes from the balance of the tensor's flow in the record. The search begins
 * at the flow that was found last, because tensors are sent in the same order again and again. */
static clv_code charge_to_record(clv_program_gate *g, const cleave_sending *s,
                                 const declared_row *r, clv_err *err) {
  clv_egress_key key;
  if (!g->record) return CLV_OK;
  make_key(g, s, r, &key);
  for (size_t i = 0; i < g->n_flows; i++) {
    size_t at = (g->last_found_flow + i) % g->n_flows;
    if (!egress_is_same_key(&g->flows[at].key, &key)) continue;
    g->last_found_flow = at;
    return clv_egress_charge(g->flows[at].flow, s->bytes, err);
  }
  CLV_TRY(add_flow(g, &key, s, err));
  return clv_egress_charge(g->flows[g->last_found_flow].flow, s->bytes, err);
}

cleave_status clv_program_gate_charge(void *gate, const cleave_sending *s, cleave_error *error) {
  clv_program_gate *g = gate;
  char name[512];
  declared_row undeclared_row;
  clv_err why;
  const declared_row *r = find_row(g, s);
  if (!r) r = make_undeclared_row(s, &undeclared_row);
  if (g->policy && s->kind != CLEAVE_SENDING_FAILURE) {
    clv_policy_tensor t = make_policy_tensor(g, s, r, format_tensor(s, name, sizeof name));
    if (clv_policy_charge(g->policy, &t, s->bytes, &why) != CLV_OK)
      return refuse_sending(g, why.text, error);
  }
  if (charge_to_record(g, s, r, &why) == CLV_OK) return CLEAVE_OK;
  error->status = (cleave_status)why.code;
  snprintf(error->text, sizeof error->text, "nothing leaves without a record: %.400s", why.text);
  return error->status;
}
