/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks the rows that a program declares (cleave_declare) against its fronts, the layers at the
 * master that a record passes before a tensor is sent. A layer hides records only if no worker
 * knows its weights.
 *
 * api_fronts_note_module and api_fronts_note_values add keys and values of weights to the ledger of
 * the host, as the trainer does for a session: before a module is sent to its worker, before
 * weights are written there, and after weights were read from a worker. If the program gives values
 * to a module at the master, both functions keep a sample of the values.
 *
 * Before the first value of a module at the master is sent under a row, api_fronts_judge joins the
 * graphs of all calls on which the value depends to one graph, from the leaves on. Each layer of
 * the joined graph is at a worker, known or secret; whether it is known is looked up in the ledger
 * by its key or values. The rules of `plan` (master/reach) then find what the value shows, and the
 * gate compares that with the row. For a gradient that is sent to a worker, the rules go back from
 * the loss in the same way.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/extra/extra_int.h"
#include "master/egress/egress.h"
#include "master/reach/reach.h"

enum {
  /* a value that depends on more values (sources) than this counts as a raw record */
  MAX_SOURCES = 1024,
  /* the first MAX_UNLIMITED_READS reads of weights are all added to the ledger, later reads at most
   * once in MIN_READ_INTERVAL_S */
  MAX_UNLIMITED_READS = 256,
  MIN_READ_INTERVAL_S = 60
};

/* Values that the program has given to a parameter of a module at the master, or of a declared
 * front (cleave_declaration.front). */
typedef struct given_values {
  uint64_t module; /* load_number of the module; 0: a parameter of a front */
  char name[CLV_NAME_MAX + 24];
  /* NULL: declared rows were not compared yet when the program gave the values */
  clv_weights_sample *sample;
  /* why these values would hide nothing even if they were secret; NULL: no reason */
  const char *plain_reason;
} given_values;

/* A value and all values on which it depends, and the graph node of each value in the joined
 * graph. */
typedef struct sources {
  const api_value *list[MAX_SOURCES]; /* [n] the values, by ascending id */
  int nodes[MAX_SOURCES];             /* [n] graph node of each value in the joined graph */
  size_t n;
} sources;

struct api_fronts {
  const clv_session_config *config;
  clv_program_gate *gate;
  /* the program's rows (cleave_declare) are compared with what values show */
  bool compares_rows;
  given_values *given_values; /* [n_given_values] values that the program gave */
  size_t n_given_values;
  /* [n_compared_hashes] hashes of joined graphs (graphs of all calls on which a value depends)
   * whose rows were found correct */
  uint64_t *compared_hashes;
  size_t n_compared_hashes;
  /* number of reads of weights that were added to the ledger; monotonic time before which no
   * further read is added, ns */
  uint64_t n_noted_readings, next_noted_reading_ns;
  sources sources; /* sources of the value that is being compared */
  clv_kept_ledger *ledger;
};

clv_code api_fronts_new(const clv_session_config *c, clv_program_gate *gate, api_fronts **ret,
                        clv_err *err) {
  CLV_TRY(clv_alloc(1, sizeof **ret, ret, err));
  **ret = (api_fronts){.config = c, .gate = gate};
  return clv_kept_ledger_new(&(*ret)->ledger, err);
}

static void free_given_values(given_values *g) {
  if (g->sample) clv_weights_sample_done(g->sample);
  free(g->sample);
}

void api_fronts_free(api_fronts *f) {
  if (!f) return;
  for (size_t i = 0; i < f->n_given_values; i++) free_given_values(&f->given_values[i]);
  free(f->given_values);
  free(f->compared_hashes);
  clv_kept_ledger_free(f->ledger);
  free(f);
}

void api_fronts_switch_on(api_fronts *f) { f->compares_rows = true; }

/* ---- samples of weights ---------------------------------------------------------------------- */

/* Makes a sample of the tensor's values. *ret NULL: a tensor of this dtype and shape hides
 * nothing. */
static clv_code sample_tensor(const cleave_tensor *t, clv_weights_sample **ret, clv_err *err) {
  CLV_AUTO(clv_freep) clv_weights_sample *s = NULL;
  clv_shape shape = {.rank = t->rank};
  memcpy(shape.dim, t->shape, (size_t)t->rank * sizeof *t->shape);
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  *ret = NULL;
  if (!clv_weights_sample_begin(s, (clv_dtype)t->dtype, &shape)) return CLV_OK;
  clv_weights_sample_add(s, 0, t->data, s->n_values * clv_dtype_size((clv_dtype)t->dtype));
  *ret = clv_steal(&s);
  return CLV_OK;
}

static void free_samplep(clv_weights_sample **s) {
  if (*s) clv_weights_sample_done(*s);
  free(*s);
}

static clv_code find_plain_reason(const cleave_tensor *t, const char **ret, clv_err *err) {
  CLV_AUTO(clv_plain_values_done) clv_plain_values p = {0};
  clv_shape shape = {.rank = t->rank};
  memcpy(shape.dim, t->shape, (size_t)t->rank * sizeof *t->shape);
  *ret = NULL;
  if (t->rank < 2 || t->dtype != CLEAVE_F32 || !cleave_tensor_count(t)) return CLV_OK;
  CLV_TRY(clv_plain_values_begin(&p, &shape, err));
  clv_plain_values_add(&p, t->data, cleave_tensor_count(t));
  *ret = clv_plain_values_reason(&p);
  return CLV_OK;
}

static given_values *find_given_values(const api_fronts *f, uint64_t module, const char *name) {
  for (size_t i = 0; i < f->n_given_values; i++)
    if (f->given_values[i].module == module && strcmp(f->given_values[i].name, name) == 0)
      return &f->given_values[i];
  return NULL;
}

/* Stores the sample of values that the program has given to a parameter, in place of an earlier
 * sample. */
static clv_code store_given_values(api_fronts *f, uint64_t module, const cleave_named_tensor *w,
                                   given_values *new_values, clv_err *err) {
  given_values *to = find_given_values(f, module, w->name);
  if (!to) {
    given_values *grown_values =
        reallocarray(f->given_values, f->n_given_values + 1, sizeof *grown_values);
    if (!grown_values) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    f->given_values = grown_values;
    to = &f->given_values[f->n_given_values++];
    *to = (given_values){0};
  }
  free_given_values(to);
  *to = (given_values){module, "", clv_steal(&new_values->sample), new_values->plain_reason};
  snprintf(to->name, sizeof to->name, "%.*s", (int)sizeof to->name - 1, w->name);
  return CLV_OK;
}

static clv_code note_given_values(api_fronts *f, cleave_runtime *rt, uint64_t module,
                                  const cleave_named_tensor *w, clv_err *err) {
  CLV_AUTO(free_given_values) given_values g = {0};
  if (w->tensor.rank < 2) return CLV_OK;
  if (f->compares_rows) CLV_TRY(sample_tensor(&w->tensor, &g.sample, err));
  if (g.sample) g.sample->max_row_digests = CLV_MAX_LOOKED_UP_ROWS_PER_TENSOR;
  if (f->compares_rows) CLV_TRY(find_plain_reason(&w->tensor, &g.plain_reason, err));
  LOCKED(rt);
  f->n_compared_hashes = 0;
  return store_given_values(f, module, w, &g, err);
}

/* ---- the ledger of keys and weights that workers know ---------------------------------------- */

static const char *find_worker_identity(const cleave_runtime *rt, uint32_t node) {
  return rt->peers[node].spec->identity;
}

static bool is_later_node_of_layer(const clv_graph *g, int k) {
  const clv_node *n = &g->nodes[k];
  return k > 0 && n[-1].op != CLV_OP_INPUT && n[-1].layer == n->layer;
}

/* Returns the name (a hash) under which the ledger lists the key of graph node k of a module. A
 * module with the seed of a session's network (CLEAVE_SESSION_NETWORK) has the names of that
 * network, because a session with the same train.seed has the same keys. */
static clv_code find_ledger_key_name(const cleave_module *m, int k, clv_sha256 *ret, clv_err *err) {
  const clv_node *n = &m->graph->nodes[k];
  if (m->seed != CLEAVE_SESSION_NETWORK) return clv_ledger_hash_module_key(&n->key, ret, err);
  return clv_ledger_hash_layer_key(&m->runtime->seed, n->layer,
                                   is_later_node_of_layer(m->graph, k) ? n->name : "", ret, err);
}

static clv_code add_tensor_sample(clv_ledger_list *l, const char *identity, const cleave_tensor *t,
                                  clv_err *err) {
  CLV_AUTO(free_samplep) clv_weights_sample *s = NULL;
  CLV_TRY(sample_tensor(t, &s, err));
  return s ? clv_ledger_list_add_sample(l, identity, s, err) : CLV_OK;
}

static cleave_named_tensor make_weight_view(const api_pending_weight *w) {
  cleave_named_tensor ret = {w->name,
                             {.dtype = (cleave_dtype)w->tensor->dtype,
                              .rank = w->tensor->shape.rank,
                              .data = w->tensor->data}};
  memcpy(ret.tensor.shape, w->tensor->shape.dim, sizeof ret.tensor.shape);
  return ret;
}

static clv_code note_sent_module(api_fronts *f, const cleave_module *m, clv_err *err) {
  CLV_AUTO(clv_ledger_list_done) clv_ledger_list l = {0};
  const char *identity = find_worker_identity(m->runtime, m->node);
  for (int k = 0; k < m->graph->n_nodes; k++) {
    clv_sha256 of;
    if (m->graph->nodes[k].op == CLV_OP_INPUT) continue;
    CLV_TRY(find_ledger_key_name(m, k, &of, err));
    CLV_TRY(clv_ledger_list_add(&l, identity, CLV_LEDGER_KEY, &of, err));
  }
  for (size_t i = 0; i < m->n_pending_weights; i++) {
    cleave_named_tensor w = make_weight_view(&m->pending_weights[i]);
    CLV_TRY(add_tensor_sample(&l, identity, &w.tensor, err));
  }
  return clv_kept_ledger_add(f->ledger, l.items, l.n, err);
}

/* Forgets which joined graphs were compared. Call when the ledger has new entries, because a worker
 * then knows more. */
static void forget_compared_hashes(api_fronts *f, cleave_runtime *rt) {
  LOCKED(rt);
  f->n_compared_hashes = 0;
}

cleave_status api_fronts_note_module(api_fronts *f, const cleave_module *m, cleave_error *error) {
  if (m->node) {
    TRY(note_sent_module(f, m, &err));
    forget_compared_hashes(f, m->runtime);
  }
  for (size_t i = 0; !m->node && i < m->n_pending_weights; i++) {
    cleave_named_tensor w = make_weight_view(&m->pending_weights[i]);
    TRY(note_given_values(f, m->runtime, m->load_number, &w, &err));
  }
  return CLEAVE_OK;
}

/* True if this reading of weights is to be added to the ledger. Not all are, because a program may
 * read in each step and the ledger never forgets an entry. */
static bool should_note_reading(api_fronts *f, cleave_runtime *rt) {
  LOCKED(rt);
  uint64_t now_ns = api_now(rt);
  if (f->n_noted_readings >= MAX_UNLIMITED_READS && now_ns < f->next_noted_reading_ns) return false;
  f->n_noted_readings++;
  f->next_noted_reading_ns = now_ns + MIN_READ_INTERVAL_S * UINT64_C(1000000000);
  return true;
}

cleave_status api_fronts_note_values(api_fronts *f, const api_noted_values *v,
                                     cleave_error *error) {
  CLV_AUTO(clv_ledger_list_done) clv_ledger_list l = {0};
  if (v->are_read_values && !should_note_reading(f, v->runtime)) return CLEAVE_OK;
  for (size_t i = 0; i < v->n; i++) {
    const cleave_named_tensor *w = &v->items[i];
    if (v->node)
      TRY(add_tensor_sample(&l, find_worker_identity(v->runtime, v->node), &w->tensor, &err));
    else
      TRY(note_given_values(f, v->runtime, v->module->load_number, w, &err));
  }
  if (!l.n) return CLEAVE_OK;
  TRY(clv_kept_ledger_add(f->ledger, l.items, l.n, &err));
  forget_compared_hashes(f, v->runtime);
  return CLEAVE_OK;
}

/* ---- looking up which layers workers know ---------------------------------------------------- */

/* A joined graph, with what workers know of each graph node, and the first reason why a layer hides
 * nothing. */
typedef struct joined_graph {
  /* the graph is for a gradient, which shows labels, so a layer that does not learn hides
   * nothing */
  bool is_for_label_gradient;
  clv_graph *graph;
  clv_weight_secrecy *layer_kinds; /* [CLV_MAX_NODES] what workers know of each graph node */
  clv_kept_ledger *kept_ledger;    /* locked until joined_graph_done; NULL: not yet, or none */
  clv_ledger *own_ledger;          /* NULL if there is a kept one */
  const clv_ledger *ledger;        /* the contents of either */
  clv_bytes reason;                /* why a layer hides nothing; empty: workers know no layer */
} joined_graph;

static void joined_graph_done(joined_graph *j) {
  clv_graph_free(j->graph);
  free(j->layer_kinds);
  if (j->kept_ledger) clv_kept_ledger_unlock(j->kept_ledger);
  clv_ledger_free(j->own_ledger);
  clv_bytes_done(&j->reason);
}

/* kept_ledger NULL: the ledger is read for this graph. */
static clv_code joined_graph_begin(joined_graph *j, clv_kept_ledger *kept_ledger, clv_err *err) {
  CLV_TRY(clv_graph_new(&j->graph, err));
  CLV_TRY(clv_alloc(CLV_MAX_NODES, sizeof *j->layer_kinds, &j->layer_kinds, err));
  if (kept_ledger) {
    CLV_TRY(clv_kept_ledger_lock(kept_ledger, &j->ledger, err));
    j->kept_ledger = kept_ledger;
    return CLV_OK;
  }
  CLV_TRY(clv_ledger_open(&j->own_ledger, err));
  j->ledger = j->own_ledger;
  return CLV_OK;
}

/* Appends why values that the program has given hide nothing; appends nothing if they do hide. */
static clv_code add_given_values_reason(const joined_graph *j, const given_values *g,
                                        bool is_secret, clv_bytes *reason, clv_err *err) {
  if (!is_secret)
    clv_bytes_puts(reason, "has weights that the program does not declare secret");
  else if (g->plain_reason)
    clv_bytes_puts(reason, g->plain_reason);
  else if (!g->sample)
    clv_bytes_puts(reason, "got its weights before the first row was declared");
  else
    return clv_ledger_explain_known_sample(j->ledger, g->sample, reason, err);
  return CLV_OK;
}

static bool is_tied(const clv_graph *g, int k) {
  bool is_tied_layer = g->nodes[k].tie_owner[0];
  for (int i = 0; i < g->n_nodes; i++)
    is_tied_layer |= strcmp(g->nodes[i].tie_owner, g->nodes[k].name) == 0 && g->nodes[k].name[0];
  return is_tied_layer;
}

/* Appends why a layer of a module at the master hides nothing, as `plan` says it; appends nothing
 * if it does hide. */
static clv_code add_layer_reason(const api_fronts *f, const joined_graph *j, const cleave_module *m,
                                 int k, clv_bytes *reason, clv_err *err) {
  const clv_node *n = &m->graph->nodes[k];
  clv_sha256 of;
  if (is_tied(m->graph, k)) clv_bytes_puts(reason, "shares its weights with another layer");
  for (int i = 0; i < m->params->n && !reason->len; i++) {
    const clv_param *p = &m->params->list[i];
    const given_values *g = find_given_values(f, m->load_number, p->name);
    if (p->node != k || p->shape.rank < 2) continue;
    if (g) return add_given_values_reason(j, g, m->has_secret_weights, reason, err);
  }
  if (reason->len) return CLV_OK;
  if (n->op == CLV_OP_LINEAR && n->attrs.init_zero)
    clv_bytes_puts(reason, "begins with 0");
  else if (f->config->train.seed.is_guessable)
    clv_bytes_puts(reason, "has weights from a train.seed that can be tried out (leave it out)");
  if (reason->len) return CLV_OK;
  CLV_TRY(find_ledger_key_name(m, k, &of, err));
  return clv_ledger_explain_known_key(j->ledger, &of, reason, err);
}

static void keep_first_reason(joined_graph *j, const char *layer, const char *module,
                              const clv_bytes *reason) {
  if (j->reason.len) return;
  clv_bytes_printf(&j->reason, "layer '%.40s'%s%.40s%s %s", layer, *module ? " of '" : "", module,
                   *module ? "'" : "", reason->data);
}

static bool has_weights(const clv_node *n) {
  return clv_op_def_of(n->op)->mixing != CLV_MIXES_NOTHING;
}

/* True if some weight of layer k is trainable and not frozen. */
static bool is_learning_layer(const cleave_module *m, int k) {
  bool has_learning_weight = false;
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    has_learning_weight |= p->node == k && p->shape.rank >= 2 && p->trainable && !p->frozen;
  }
  return has_learning_weight;
}

static clv_code find_layer_kind(const api_fronts *f, joined_graph *j, const cleave_module *m, int k,
                                clv_weight_secrecy *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes reason = {0};
  const clv_node *n = &m->graph->nodes[k];
  *ret = m->node ? CLV_WEIGHTS_AT_WORKER : CLV_WEIGHTS_SECRET;
  if (m->node || !has_weights(n)) return CLV_OK;
  CLV_TRY(add_layer_reason(f, j, m, k, &reason, err));
  if (!reason.len && j->is_for_label_gradient && !is_learning_layer(m, k))
    clv_bytes_puts(&reason, "is frozen");
  if (!reason.len) return CLV_OK;
  *ret = CLV_WEIGHTS_KNOWN;
  keep_first_reason(j, n->name, m->name, &reason);
  return CLV_OK;
}

/* ---- joining the graphs of calls ------------------------------------------------------------- */

static bool add_source(sources *s, const api_value *v) {
  for (size_t i = 0; i < s->n; i++)
    if (s->list[i] == v) return true;
  if (s->n == MAX_SOURCES) return false;
  s->list[s->n++] = v;
  return true;
}

static int compare_ids(const void *a, const void *b) {
  uint64_t x = (*(const api_value *const *)a)->id, y = (*(const api_value *const *)b)->id;
  return x < y ? -1 : x > y;
}

/* Collects the values on which v depends. Returns false if there are more than MAX_SOURCES, or if
 * one is a kept reference or a leaf of cached rows, whose sources are unknown. */
static bool find_sources(const api_value *v, sources *s) {
  s->n = 0;
  if (!add_source(s, v)) return false;
  for (size_t i = 0; i < s->n; i++) {
    const api_value *x = s->list[i];
    if (x->kept_ref || x->cached_rows_module) return false;
    for (uint32_t k = 0; x->module && k < x->n_args; k++)
      if (!add_source(s, x->args[k])) return false;
  }
  qsort(s->list, s->n, sizeof *s->list, compare_ids);
  return true;
}

static size_t find_source_index(const sources *s, const api_value *v) {
  size_t i = 0;
  while (s->list[i] != v) i++;
  return i;
}

static int find_source_node(const sources *s, const api_value *v) {
  return s->nodes[find_source_index(s, v)];
}

static clv_code join_leaf(joined_graph *j, const api_value *v, int *ret, clv_err *err) {
  char name[32];
  snprintf(name, sizeof name, "leaf%llu", (unsigned long long)v->id);
  clv_dtype dtype = v->dtype == CLV_BF16 ? CLV_F32 : v->dtype;
  CLV_TRY(clv_graph_add_input(j->graph, name, dtype, &v->shape, ret, err));
  j->layer_kinds[*ret] = CLV_WEIGHTS_AT_WORKER;
  return CLV_OK;
}

static clv_code join_node(const api_fronts *f, joined_graph *j, const cleave_module *m, int k,
                          const int *joined_nodes, int *ret, clv_err *err) {
  const clv_node *n = &m->graph->nodes[k];
  int in[CLV_MAX_IN];
  char name[32];
  if (j->graph->n_nodes == CLV_MAX_NODES)
    return clv_fail(err, CLV_EXHAUSTED, "more than %d layers", CLV_MAX_NODES);
  snprintf(name, sizeof name, "n%d", j->graph->n_nodes);
  for (int i = 0; i < n->n_in; i++) in[i] = joined_nodes[n->in[i]];
  CLV_TRY(clv_graph_add(j->graph, n->op, &n->attrs, name, (uint32_t)j->graph->n_nodes, in, n->n_in,
                        ret, err));
  return find_layer_kind(f, j, m, k, &j->layer_kinds[*ret], err);
}

static clv_code join_call(const api_fronts *f, joined_graph *j, const sources *s,
                          const api_value *v, int *ret, clv_err *err) {
  const cleave_module *m = v->module;
  CLV_AUTO(clv_freep) int *joined_nodes = NULL;
  uint32_t input = 0;
  CLV_TRY(clv_alloc((size_t)m->graph->n_nodes, sizeof *joined_nodes, &joined_nodes, err));
  for (int k = 0; k < m->graph->n_nodes; k++) {
    if (m->graph->nodes[k].op == CLV_OP_INPUT)
      joined_nodes[k] = find_source_node(s, v->args[input++]);
    else
      CLV_TRY(join_node(f, j, m, k, joined_nodes, &joined_nodes[k], err));
  }
  *ret = joined_nodes[m->graph->output_node];
  return CLV_OK;
}

static clv_code join_sources(const api_fronts *f, joined_graph *j, sources *s, clv_err *err) {
  for (size_t i = 0; i < s->n; i++) {
    const api_value *v = s->list[i];
    CLV_TRY(v->module ? join_call(f, j, s, v, &s->nodes[i], err)
                      : join_leaf(j, v, &s->nodes[i], err));
  }
  return CLV_OK;
}

/* ---- applying the rules of plan to a joined graph -------------------------------------------- */

/* Result of the rules for a value: its findings, and the smallest number of hiding layers on any
 * path through the graph. */
typedef struct verdict {
  clv_findings findings;
  uint32_t n_hiding_nodes;
} verdict;

static bool is_hiding_node(const joined_graph *j, const clv_reach *r, int k) {
  return has_weights(&j->graph->nodes[k]) && j->layer_kinds[k] == CLV_WEIGHTS_SECRET &&
         r[k].sums_two_places;
}

static clv_code judge_node(const joined_graph *j, int node, verdict *ret, clv_err *err) {
  const clv_graph *g = j->graph;
  CLV_AUTO(clv_freep) clv_reach *reach = NULL;
  CLV_AUTO(clv_freep) uint32_t *n_hiding_nodes = NULL;
  CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *reach, &reach, err));
  CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *n_hiding_nodes, &n_hiding_nodes, err));
  CLV_TRY(clv_reach_records_in_values(g, j->layer_kinds, UINT32_MAX, reach, err));
  for (int k = 0; k < g->n_nodes; k++) {
    const clv_node *n = &g->nodes[k];
    n_hiding_nodes[k] = n->n_in ? UINT32_MAX : 0;
    for (int i = 0; i < n->n_in; i++)
      n_hiding_nodes[k] = CLV_MIN(n_hiding_nodes[k], n_hiding_nodes[n->in[i]]);
    n_hiding_nodes[k] += n->n_in && is_hiding_node(j, reach, k);
  }
  *ret = (verdict){clv_reach_findings(&reach[node]), n_hiding_nodes[node]};
  if (g->nodes[node].op == CLV_OP_INPUT) ret->findings = CLV_FINDING_RAW_INPUT;
  return CLV_OK;
}

/* Applies the rules to the value v, whose sources are in f->sources. has_all_sources false: some
 * source is unknown, so the value counts as a raw record. */
static clv_code judge_value(api_fronts *f, const api_value *v, bool has_all_sources,
                            joined_graph *j, verdict *ret, clv_err *err) {
  *ret = (verdict){CLV_FINDING_RAW_INPUT, 0};
  CLV_TRY(joined_graph_begin(j, f->ledger, err));
  if (!has_all_sources) {
    clv_bytes_puts(&j->reason, "it is made of kept values, or of too many calls");
    return CLV_OK;
  }
  CLV_TRY(join_sources(f, j, &f->sources, err));
  return judge_node(j, find_source_node(&f->sources, v), ret, err);
}

/* Applies the rules to the gradient of a graph node's value, back from the value that the loss
 * reads (g->output_node). */
static clv_code judge_gradient_of_node(const joined_graph *j, int node, verdict *ret,
                                       clv_err *err) {
  const clv_graph *g = j->graph;
  CLV_AUTO(clv_freep) clv_reach *reach = NULL;
  CLV_AUTO(clv_freep) uint32_t *n_hiding_nodes = NULL;
  CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *reach, &reach, err));
  CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *n_hiding_nodes, &n_hiding_nodes, err));
  CLV_TRY(clv_reach_labels_in_gradients(g, j->layer_kinds, g->nodes[node].layer, reach, err));
  for (int k = 0; k < g->n_nodes; k++) n_hiding_nodes[k] = UINT32_MAX;
  n_hiding_nodes[g->output_node] = 0;
  for (int k = g->output_node; k > node; k--)
    for (int i = 0; n_hiding_nodes[k] != UINT32_MAX && i < g->nodes[k].n_in; i++) {
      uint32_t *to = &n_hiding_nodes[g->nodes[k].in[i]];
      *to = CLV_MIN(*to, n_hiding_nodes[k] + is_hiding_node(j, reach, k));
    }
  bool is_readable = reach[node].has_unmixed_path || reach[node].has_known_mixing;
  *ret = (verdict){is_readable ? CLV_FINDING_LABELS_READABLE : CLV_FINDING_MIXED,
                   n_hiding_nodes[node]};
  return CLV_OK;
}

/* Applies the rules to the gradient of v that comes from one root of the backward. f->sources has
 * the sources of the root. The root must be a loss layer of Cleave, alone or last in its module. */
static clv_code judge_gradient(api_fronts *f, const api_value *v, const api_value *root,
                               joined_graph *j, verdict *ret, clv_err *err) {
  j->is_for_label_gradient = true;
  CLV_TRY(joined_graph_begin(j, f->ledger, err));
  CLV_TRY(join_sources(f, j, &f->sources, err));
  const clv_node *loss_node = &j->graph->nodes[find_source_node(&f->sources, root)];
  *ret = (verdict){CLV_FINDING_LABELS_READABLE, 0};
  if (!clv_op_is_loss(loss_node->op)) {
    clv_bytes_printf(&j->reason, "'%.60s' ends with no loss layer", root->module->name);
    return CLV_OK;
  }
  j->graph->output_node = loss_node->in[0];
  return judge_gradient_of_node(j, find_source_node(&f->sources, v), ret, err);
}

/* ---- joined graphs that were compared before ------------------------------------------------- */

static uint64_t mix_hash(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ hash >> 29;
}

/* Returns a hash of the receiver and of the calls in f->sources, without their batch sizes. */
static uint64_t hash_calls(const api_fronts *f, const char *worker) {
  uint64_t hash = 0;
  for (; *worker; worker++) hash = mix_hash(hash, (unsigned char)*worker);
  for (size_t i = 0; i < f->sources.n; i++) {
    const api_value *v = f->sources.list[i];
    hash = mix_hash(hash, v->module ? v->module->load_number : 0);
    for (int k = 1; !v->module && k < v->shape.rank; k++)
      hash = mix_hash(hash, (uint64_t)v->shape.dim[k]);
    for (uint32_t k = 0; v->module && k < v->n_args; k++)
      hash = mix_hash(hash, (uint64_t)find_source_index(&f->sources, v->args[k]));
  }
  return hash;
}

static bool was_hash_compared(const api_fronts *f, uint64_t hash) {
  for (size_t i = 0; i < f->n_compared_hashes; i++)
    if (f->compared_hashes[i] == hash) return true;
  return false;
}

static void remember_compared_hash(api_fronts *f, uint64_t hash) {
  uint64_t *grown_hashes =
      reallocarray(f->compared_hashes, f->n_compared_hashes + 1, sizeof *grown_hashes);
  if (!grown_hashes) return; /* without the stored hash, the graph is compared again */
  f->compared_hashes = grown_hashes;
  f->compared_hashes[f->n_compared_hashes++] = hash;
}

/* Compares the declared row of a tensor with the verdict (what the rules of `plan` have found). If
 * they agree, stores the hash of the joined graph, so that the graph is not compared again; `hash`
 * 0: there is no hash to store. */
static cleave_status compare_row_with_verdict(api_fronts *f, const cleave_sending *sending,
                                              const verdict *rule_verdict, const joined_graph *j,
                                              uint64_t hash, cleave_error *error) {
  cleave_status status = clv_program_gate_compare_findings(
      f->gate, sending, rule_verdict->findings, rule_verdict->n_hiding_nodes,
      j->reason.len ? j->reason.data : "", error);
  if (status == CLEAVE_OK && hash) remember_compared_hash(f, hash);
  return status;
}

static cleave_status compare_value(api_fronts *f, const api_value *v, const cleave_sending *sending,
                                   cleave_error *error) {
  CLV_AUTO(joined_graph_done) joined_graph j = {0};
  verdict rule_verdict;
  bool has_all_sources = find_sources(v, &f->sources);
  uint64_t hash = has_all_sources ? hash_calls(f, sending->worker) : 0;
  if (has_all_sources && was_hash_compared(f, hash)) return CLEAVE_OK;
  TRY(judge_value(f, v, has_all_sources, &j, &rule_verdict, &err));
  return compare_row_with_verdict(f, sending, &rule_verdict, &j, hash, error);
}

static bool is_source(const sources *s, const api_value *v) {
  for (size_t i = 0; i < s->n; i++)
    if (s->list[i] == v) return true;
  return false;
}

static cleave_status compare_gradient_from(api_fronts *f, const api_value *v, const api_value *root,
                                           const cleave_sending *sending, cleave_error *error) {
  CLV_AUTO(joined_graph_done) joined_graph j = {0};
  verdict rule_verdict = {CLV_FINDING_LABELS_READABLE, 0};
  bool has_all_sources = find_sources(root, &f->sources);
  if (has_all_sources && !is_source(&f->sources, v)) return CLEAVE_OK;
  uint64_t hash = has_all_sources ? mix_hash(hash_calls(f, sending->worker),
                                             1 + find_source_index(&f->sources, v))
                                  : 0;
  if (has_all_sources && was_hash_compared(f, hash)) return CLEAVE_OK;
  if (has_all_sources) TRY(judge_gradient(f, v, root, &j, &rule_verdict, &err));
  return compare_row_with_verdict(f, sending, &rule_verdict, &j, hash, error);
}

/* Compares the declared row of v's gradient with what the running backward would send: the gradient
 * of v from each root that depends on v. Skips a root whose gradient the program supplies, because
 * Cleave cannot know what that gradient shows of labels; the row that the program declares
 * counts. */
static cleave_status compare_gradient(api_fronts *f, const api_value *v,
                                      const cleave_sending *sending, cleave_error *error) {
  for (const api_value *r = v->context->newest_value; r; r = r->older_value)
    if (r != v && r->module && r->last_pass_number == v->last_pass_number && r->root_weight != 0)
      TRY_API(compare_gradient_from(f, v, r, sending, error));
  return CLEAVE_OK;
}

cleave_status api_fronts_judge(api_fronts *f, const api_value *v, const cleave_sending *sending,
                               cleave_error *error) {
  if (!clv_program_gate_has_declared_findings(f->gate, sending)) return CLEAVE_OK;
  return sending->kind == CLEAVE_SENDING_GRADIENT ? compare_gradient(f, v, sending, error)
                                                  : compare_value(f, v, sending, error);
}

/* ---- fronts that a row declares -------------------------------------------------------------- */

static const cleave_named_tensor *find_front_weight(const cleave_declaration *d, const char *name) {
  for (size_t i = 0; i < d->n_front_weights; i++)
    if (d->front_weights[i].name && strcmp(d->front_weights[i].name, name) == 0)
      return &d->front_weights[i];
  return NULL;
}

/* Appends why the layer of parameter p of a declared front hides nothing; appends nothing if it
 * does hide. */
static clv_code add_front_reason(const joined_graph *j, const cleave_declaration *d,
                                 const clv_param *p, clv_bytes *reason, clv_err *err) {
  CLV_AUTO(free_given_values) given_values g = {0};
  const cleave_named_tensor *w = find_front_weight(d, p->name);
  if (d->front_is_secret && (!w || !w->tensor.data))
    return clv_fail(err, CLV_INVALID, "front_weights lack '%s' of a secret front", p->name);
  if (!d->front_is_secret) return add_given_values_reason(j, &g, false, reason, err);
  clv_shape shape = {.rank = w->tensor.rank};
  memcpy(shape.dim, w->tensor.shape, sizeof shape.dim);
  if ((clv_dtype)w->tensor.dtype != p->dtype || !clv_shape_equal(&shape, &p->shape))
    return clv_fail(err, CLV_INVALID, "front_weights: '%s' is of another type or shape", p->name);
  CLV_TRY(sample_tensor(&w->tensor, &g.sample, err));
  if (g.sample) g.sample->max_row_digests = CLV_MAX_LOOKED_UP_ROWS_PER_TENSOR;
  CLV_TRY(find_plain_reason(&w->tensor, &g.plain_reason, err));
  return add_given_values_reason(j, &g, true, reason, err);
}

static clv_code find_front_kinds(joined_graph *j, const cleave_declaration *d, clv_err *err) {
  CLV_AUTO(clv_params_freep) clv_params *params = NULL;
  CLV_TRY(clv_params_make(j->graph, &params, err));
  for (int k = 0; k < j->graph->n_nodes; k++)
    j->layer_kinds[k] =
        j->graph->nodes[k].op == CLV_OP_INPUT ? CLV_WEIGHTS_AT_WORKER : CLV_WEIGHTS_SECRET;
  for (int i = 0; i < params->n; i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes reason = {0};
    const clv_param *p = &params->list[i];
    if (p->shape.rank < 2 || j->layer_kinds[p->node] == CLV_WEIGHTS_KNOWN) continue;
    CLV_TRY(add_front_reason(j, d, p, &reason, err));
    if (!reason.len) continue;
    j->layer_kinds[p->node] = CLV_WEIGHTS_KNOWN;
    keep_first_reason(j, j->graph->nodes[p->node].name, "", &reason);
  }
  return CLV_OK;
}

static clv_code judge_front(const cleave_declaration *d, joined_graph *j, verdict *ret,
                            clv_err *err) {
  int n;
  const int *outputs = api_graph_outputs(d->front, &n);
  CLV_TRY(joined_graph_begin(j, NULL, err));
  j->graph = clv_graph_free(j->graph);
  CLV_TRY(api_graph_copy(api_unwrap_graph(d->front), &j->graph, err));
  CLV_TRY(find_front_kinds(j, d, err));
  return judge_node(j, n ? outputs[0] : j->graph->output_node, ret, err);
}

cleave_status api_fronts_fill_row(cleave_declaration *d, cleave_error *error) {
  CLV_AUTO(joined_graph_done) joined_graph j = {0};
  char findings_text[CLV_FINDINGS_TEXT_BYTES];
  verdict rule_verdict;
  if (!d->front) return CLEAVE_OK;
  if (d->kind != CLEAVE_SENDING_LEAF)
    return api_fail(error, CLV_INVALID, "a row with a front is that of a leaf");
  TRY(judge_front(d, &j, &rule_verdict, &err));
  clv_findings missing_findings = d->shows ? rule_verdict.findings & ~(clv_findings)d->shows : 0;
  if (missing_findings || d->hiding_layers > rule_verdict.n_hiding_nodes)
    return api_fail(
        error, CLV_DENIED,
        "the front of the row for module '%.60s' shows %s behind %u hiding layer%s%s%.200s; "
        "the row says less",
        d->module ? d->module : "",
        rule_verdict.findings ? clv_findings_format(rule_verdict.findings, findings_text) : "MIXED",
        rule_verdict.n_hiding_nodes, CLV_S(rule_verdict.n_hiding_nodes), j.reason.len ? ": " : "",
        j.reason.len ? j.reason.data : "");
  if (!d->shows) d->shows = rule_verdict.findings ? rule_verdict.findings : CLEAVE_SHOWS_MIXED;
  if (!d->hiding_layers) d->hiding_layers = rule_verdict.n_hiding_nodes;
  d->front = NULL;
  d->front_weights = NULL;
  d->n_front_weights = 0;
  return CLEAVE_OK;
}
