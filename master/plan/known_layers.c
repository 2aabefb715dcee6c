/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds layers of the master of which a worker knows the weights, or some rows of them, from an
 * earlier session. clv_ledger_hash_graph_node, clv_ledger_hash_param_name,
 * clv_weights_sample_digest and clv_weights_sample_row_hashes make the hashes under which the
 * ledger lists weights. The trainer adds the hashes of a tensor to the ledger before it sends the
 * tensor to a worker. clv_blueprint_read_ledger looks up the master's layers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/plan/plan_int.h"

/* ---- hashes in the ledger, the list of weights that workers have received -------------------- */

/* True if the node is not the first node of its layer, but for example an adapter. Such a node has
 * its own random key, so the hash of this key in the ledger includes the node's name. */
static bool is_not_first_of_layer(const clv_graph *g, int k) {
  const clv_node *n = &g->nodes[k];
  return k > 0 && n[-1].op != CLV_OP_INPUT && n[-1].layer == n->layer;
}

clv_code clv_ledger_hash_graph_node(const clv_session_config *c, const clv_graph *g, int k,
                                    clv_sha256 *ret, clv_err *err) {
  const char *node_name = is_not_first_of_layer(g, k) ? g->nodes[k].name : "";
  return clv_ledger_hash_layer_key(&c->train.seed.key, g->nodes[k].layer, node_name, ret, err);
}

clv_code clv_ledger_hash_param_name(const clv_sha256 *run_secret, const char *name, clv_sha256 *ret,
                                    clv_err *err) {
  return clv_hmac_sha256(run_secret, name, strlen(name), ret, err);
}

/* ---- search of a session's weights in the ledger --------------------------------------------- */

typedef struct ledger_search {
  clv_blueprint *b;
  const clv_ledger *ledger;
  clv_ledger_entry found_entry;
  /* [n_worker_weight_hashes] hashes of the initial weights of the stages at workers */
  clv_sha256 *worker_weight_hashes;
  size_t n_worker_weight_hashes, worker_weight_hashes_capacity;
  /* [n_worker_row_hashes] hashes of the rows and columns of these weights, ascending */
  clv_sha256 *worker_row_hashes;
  size_t n_worker_row_hashes;
} ledger_search;

static void free_ledger_search(ledger_search *r) {
  free(r->worker_weight_hashes);
  free(r->worker_row_hashes);
}

/* Sets known_reasons[k] of the full model's node k to the reason why a worker knows its weights, if
 * the ledger has an entry with the hash `of`, or a worker's stage begins with weights of that hash.
 * prefix, suffix: words before and after the worker's identity in the reason. If node k has a
 * reason already, keeps that reason. */
static clv_code look_up_hash(ledger_search *r, int k, clv_ledger_kind kind, const clv_sha256 *of,
                             const char *prefix, const char *suffix, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  bool is_found;
  if (r->b->known_reasons[k]) return CLV_OK;
  for (size_t i = 0; kind == CLV_LEDGER_WEIGHTS && i < r->n_worker_weight_hashes; i++)
    if (memcmp(&r->worker_weight_hashes[i], of, sizeof *of) == 0)
      return clv_strdup("has weights that a worker begins with", &r->b->known_reasons[k], err);
  CLV_TRY(clv_ledger_find(r->ledger, kind, of, &r->found_entry, &is_found, err));
  if (!is_found) return CLV_OK;
  clv_bytes_printf(&text, "%s at '%.100s'%s (%s)", prefix, r->found_entry.identity, suffix,
                   r->found_entry.date);
  if (text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_strdup(text.data, &r->b->known_reasons[k], err);
}

static int find_node(const clv_graph *g, const char *name) {
  for (int k = 0; k < g->n_nodes; k++)
    if (strcmp(g->nodes[k].name, name) == 0) return k;
  return -1;
}

/* Returns the full model's node that has the parameter of a stage; -1: there is none. */
static int find_full_model_node(const clv_blueprint *b, const clv_stage_plan *s,
                                const clv_param *p) {
  return find_node(b->full_graph, s->graph->nodes[p->node].name);
}

static bool is_drawn_by_weights_new(const clv_stage_spec *spec, const clv_param *p) {
  return clv_weights_is_newly_initialised(p->name, (const char *const *)spec->weights_new.items,
                                          spec->weights_new.n);
}

/* True if the initial values of the parameter are drawn with the random key of its layer. */
static bool is_drawn_from_key(const clv_stage_spec *s, const clv_param *p) {
  if (clv_name_is_of_adapter(p->name)) return !s->lora.from;
  return !(clv_stage_has_master_weights(s) || s->weights_artifact) || is_drawn_by_weights_new(s, p);
}

/* Looks up a parameter of a master's stage in the ledger: by its name in this run, and by the
 * random key of its layer. */
static clv_code look_up_param(ledger_search *r, const clv_sha256 *run_secret, uint32_t stage,
                              const clv_param *p, clv_err *err) {
  const clv_session_config *c = r->b->config;
  int k = find_full_model_node(r->b, &r->b->stages[stage], p);
  clv_sha256 of;
  if (k < 0 || p->shape.rank < 2) return CLV_OK;
  if (run_secret) {
    CLV_TRY(clv_ledger_hash_param_name(run_secret, p->name, &of, err));
    CLV_TRY(look_up_hash(r, k, CLV_LEDGER_RUN, &of, "was", " earlier in this run", err));
  }
  if (!is_drawn_from_key(&c->stages[stage], p) ||
      !(c->train.seed.is_given || c->train.seed.is_drawn))
    return CLV_OK;
  CLV_TRY(clv_ledger_hash_graph_node(c, r->b->full_graph, k, &of, err));
  return look_up_hash(r, k, CLV_LEDGER_KEY, &of, "was", " in an earlier session, by its key", err);
}

/* Looks up weights that a worker received in another scale, type or order. f: statistical moments
 * of the weights, which hardly depend on scale, type and order. */
static clv_code look_up_moments(ledger_search *r, int k, const clv_weights_moments *f,
                                clv_err *err) {
  for (unsigned neighbour_bits = 0; neighbour_bits < 1u << CLV_N_SPREAD_MEANS; neighbour_bits++) {
    clv_sha256 of;
    bool is_near;
    CLV_TRY(clv_weights_moments_digest(f, neighbour_bits, &of, &is_near, err));
    if (is_near)
      CLV_TRY(look_up_hash(r, k, CLV_LEDGER_WEIGHTS, &of,
                           "has weights that are scaled, rounded or "
                           "reordered ones",
                           " in an earlier session", err));
  }
  return CLV_OK;
}

static int compare_hashes(const void *a, const void *b) { return memcmp(a, b, sizeof(clv_sha256)); }

/* Adds the hashes of the rows and columns of a tensor that a worker's stage begins with. */
static clv_code add_worker_rows(ledger_search *r, const clv_weights_sample *s, clv_err *err) {
  for (int reads_columns = 0; reads_columns < 2; reads_columns++) {
    clv_row_hashes row_hashes;
    CLV_TRY(clv_weights_sample_row_hashes(s, reads_columns, &row_hashes, err));
    if (!row_hashes.n) continue;
    clv_sha256 *grown_rows = reallocarray(
        r->worker_row_hashes, r->n_worker_row_hashes + row_hashes.n, sizeof *grown_rows);
    if (!grown_rows) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    r->worker_row_hashes = grown_rows;
    memcpy(r->worker_row_hashes + r->n_worker_row_hashes, row_hashes.hashes,
           row_hashes.n * sizeof *row_hashes.hashes);
    r->n_worker_row_hashes += row_hashes.n;
  }
  return CLV_OK;
}

/* Number of a tensor's rows that a worker has received, and the sum of their points
 * (clv_row_hash_points): a short row has few points, because its hash may be equal by chance. */
typedef struct row_hits {
  size_t n, points_sum;
} row_hits;

static void count_row_hit(row_hits *h, const clv_sha256 *row) {
  h->n++;
  h->points_sum += clv_row_hash_points(row);
}

/* Sets known_reasons[k] of node k if a worker has received enough of the rows or columns in
 * `row_hashes`. One row with 8 values is enough: the worker then knows the weights of one output of
 * the layer, which sums values of the record. */
static clv_code note_found_rows(ledger_search *r, int k, const clv_row_hashes *row_hashes,
                                const char *noun, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  row_hits worker_hits = {0}, ledger_hits = {0};
  for (size_t i = 0; i < row_hashes->n; i++) {
    const clv_sha256 *row = &row_hashes->hashes[i];
    bool is_in_ledger = false;
    if (r->n_worker_row_hashes && bsearch(row, r->worker_row_hashes, r->n_worker_row_hashes,
                                          sizeof *r->worker_row_hashes, compare_hashes))
      count_row_hit(&worker_hits, row);
    if (clv_ledger_count_rows(r->ledger))
      CLV_TRY(clv_ledger_find(r->ledger, CLV_LEDGER_ROW, row, &r->found_entry, &is_in_ledger, err));
    if (is_in_ledger) count_row_hit(&ledger_hits, row);
  }
  if (ledger_hits.points_sum >= CLV_ROW_MIN_POINTS)
    clv_bytes_printf(&text,
                     "has %zu of %zu %s that were, times a factor, at '%.100s' in an earlier "
                     "session (%s)",
                     ledger_hits.n, row_hashes->n, noun, r->found_entry.identity,
                     r->found_entry.date);
  else if (worker_hits.points_sum >= CLV_ROW_MIN_POINTS)
    clv_bytes_printf(&text, "has %zu of %zu %s that a worker begins with, times a factor",
                     worker_hits.n, row_hashes->n, noun);
  if (text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return text.len ? clv_strdup(text.data, &r->b->known_reasons[k], err) : CLV_OK;
}

static clv_code look_up_sample_rows(ledger_search *r, int k, const clv_weights_sample *s,
                                    clv_err *err) {
  for (int reads_columns = 0; reads_columns < 2; reads_columns++) {
    clv_row_hashes row_hashes;
    CLV_TRY(clv_weights_sample_row_hashes(s, reads_columns, &row_hashes, err));
    if (!r->b->known_reasons[k])
      CLV_TRY(note_found_rows(r, k, &row_hashes, reads_columns ? "columns" : "rows", err));
  }
  return CLV_OK;
}

/* Adds the hashes of a tensor that a worker's stage begins with, because the worker knows this
 * tensor. */
static clv_code add_worker_weight_hashes(ledger_search *r, const clv_weights_sample *s,
                                         clv_err *err) {
  size_t n, n_needed = r->n_worker_weight_hashes + CLV_SAMPLE_MAX_HASHES;
  if (n_needed > r->worker_weight_hashes_capacity) {
    clv_sha256 *grown_rows =
        reallocarray(r->worker_weight_hashes, 2 * n_needed, sizeof *grown_rows);
    if (!grown_rows) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    r->worker_weight_hashes = grown_rows;
    r->worker_weight_hashes_capacity = 2 * n_needed;
  }
  CLV_TRY(
      clv_weights_sample_hashes(s, r->worker_weight_hashes + r->n_worker_weight_hashes, &n, err));
  r->n_worker_weight_hashes += n;
  return CLV_OK;
}

static clv_code look_up_sample(ledger_search *r, uint32_t stage, const clv_param *p,
                               const clv_weights_sample *s, clv_err *err) {
  clv_weights_moments f;
  clv_sha256 of;
  int k = find_full_model_node(r->b, &r->b->stages[stage], p);
  if (r->b->stages[stage].worker >= 0) {
    CLV_TRY(add_worker_rows(r, s, err));
    return add_worker_weight_hashes(r, s, err);
  }
  if (k < 0) return CLV_OK;
  CLV_TRY(clv_weights_sample_digest(s, &of, err));
  CLV_TRY(look_up_hash(r, k, CLV_LEDGER_WEIGHTS, &of, "has weights that were",
                       " in an earlier session", err));
  for (int uses_all_values = 0; uses_all_values < 2; uses_all_values++)
    if (clv_weights_sample_moments(s, uses_all_values, &f)) CLV_TRY(look_up_moments(r, k, &f, err));
  return look_up_sample_rows(r, k, s, err);
}

/* ---- weights in secret files of the master --------------------------------------------------- */

typedef clv_code read_values_fn(void *user, size_t first, size_t n, void *dst, clv_err *err);

/* Sample of the weights of one tensor. begin_sample reuses it for the next tensor. max_rows: most
 * rows of a tensor to hash. */
typedef struct weight_sampler {
  clv_weights_sample sample;
  size_t max_rows;
} weight_sampler;

static void weight_sampler_freep(weight_sampler **s) {
  if (*s) clv_weights_sample_done(&(*s)->sample);
  free(*s);
}

static bool begin_sample(weight_sampler *s, clv_dtype dtype, const clv_shape *shape) {
  clv_weights_sample_done(&s->sample);
  bool has_begun = clv_weights_sample_begin(&s->sample, dtype, shape);
  s->sample.max_row_digests = s->max_rows;
  return has_begun;
}

static clv_code sample_all_values(clv_weights_sample *s, read_values_fn *read_values, void *user,
                                  clv_err *err) {
  size_t size = clv_dtype_size(s->dtype);
  CLV_AUTO(clv_freep) char *chunk = NULL;
  CLV_TRY(clv_alloc(CLV_SAMPLE_CHUNK_VALUES, size, &chunk, err));
  for (size_t first = 0; first < s->n_values; first += CLV_SAMPLE_CHUNK_VALUES) {
    size_t n = CLV_MIN(s->n_values - first, (size_t)CLV_SAMPLE_CHUNK_VALUES);
    CLV_TRY(read_values(user, first, n, chunk, err));
    clv_weights_sample_add(s, (uint64_t)first * size, chunk, n * size);
  }
  return CLV_OK;
}

typedef struct file_source {
  const clv_weights_file *file;
  const clv_weights_entry *entry;
} file_source;

static clv_code read_file_values(void *user, size_t first, size_t n, void *dst, clv_err *err) {
  const file_source *s = user;
  return clv_weights_read_range_as(s->file, s->entry, s->entry->dtype, first, dst, n, err);
}

typedef struct folder_source {
  const clv_stage_folder *folder;
  size_t at; /* index of the tensor in the lists of `folder` */
} folder_source;

static clv_code read_folder_values(void *user, size_t first, size_t n, void *dst, clv_err *err) {
  const folder_source *s = user;
  const clv_stage_folder *f = s->folder;
  return clv_weights_folder_read_tensor_range(f->folder, f->folder_indexes[s->at],
                                              &f->wanted_tensors[s->at], first, n, dst, err);
}

/* Looks up the tensors of a stage's file. A file that cannot be read is ignored here, because the
 * function that opens the file for the session refuses it before anything is sent. */
static clv_code look_up_file(ledger_search *r, uint32_t stage, weight_sampler *s, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  const clv_params *params = r->b->stages[stage].params;
  clv_err ignored_err;
  if (clv_stage_file_open(r->b, stage, &f, &found, &notes, &ignored_err) != CLV_OK) return CLV_OK;
  for (int i = 0; i < params->n; i++) {
    const clv_weights_entry *e = found[i];
    if (!e || !begin_sample(s, e->dtype, &e->shape)) continue;
    CLV_TRY(sample_all_values(&s->sample, read_file_values, &(file_source){f, e}, err));
    CLV_TRY(look_up_sample(r, stage, &params->list[i], &s->sample, err));
  }
  return CLV_OK;
}

static clv_code look_up_folder(ledger_search *r, uint32_t stage, weight_sampler *s, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0};
  CLV_AUTO(clv_stage_folder_done) clv_stage_folder f = {0};
  clv_err ignored_err;
  if (clv_stage_folder_open(r->b, stage, &f, &notes, &ignored_err) != CLV_OK) return CLV_OK;
  for (size_t i = 0; i < f.n; i++) {
    const clv_weights_want *w = &f.wanted_tensors[i];
    const clv_param *p = clv_params_find(r->b->stages[stage].params, w->name);
    if (!p || f.folder_indexes[i] == CLV_WEIGHTS_NONE || !begin_sample(s, w->dtype, &w->shape))
      continue;
    CLV_TRY(sample_all_values(&s->sample, read_folder_values, &(folder_source){&f, i}, err));
    CLV_TRY(look_up_sample(r, stage, p, &s->sample, err));
  }
  return CLV_OK;
}

static clv_code look_up_stage_files(ledger_search *r, uint32_t stage, clv_err *err) {
  const clv_stage_spec *spec = &r->b->config->stages[stage];
  CLV_AUTO(weight_sampler_freep) weight_sampler *s = NULL;
  bool is_at_master = r->b->stages[stage].worker < 0;
  /* a layer whose weights are not secret counts as known anyway */
  if (is_at_master && !spec->weights_secret) return CLV_OK;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->max_rows = is_at_master ? CLV_MAX_LOOKED_UP_ROWS_PER_TENSOR : CLV_MAX_LEDGER_ROWS_PER_TENSOR;
  if (spec->weights_file) CLV_TRY(look_up_file(r, stage, s, err));
  return spec->weights_folder ? look_up_folder(r, stage, s, err) : CLV_OK;
}

/* ---- searching the ledger for the weights of all stages -------------------------------------- */

static clv_code look_up_stage(ledger_search *r, const clv_sha256 *run_secret, uint32_t i,
                              clv_err *err) {
  const clv_stage_plan *s = &r->b->stages[i];
  bool has_entries = clv_ledger_count(r->ledger) > 0;
  for (int k = 0; has_entries && k < s->params->n; k++)
    CLV_TRY(look_up_param(r, run_secret, i, &s->params->list[k], err));
  return look_up_stage_files(r, i, err);
}

/* Marks a tied layer as known if the layer that owns its weights is known. */
static clv_code copy_reasons_of_owners(clv_blueprint *b, clv_err *err) {
  for (int k = 0; k < b->full_graph->n_nodes; k++) {
    const char *owner_name = b->full_graph->nodes[k].tie_owner;
    int owner_node = owner_name[0] ? find_node(b->full_graph, owner_name) : -1;
    if (owner_node >= 0 && b->known_reasons[owner_node] && !b->known_reasons[k])
      CLV_TRY(clv_strdup(b->known_reasons[owner_node], &b->known_reasons[k], err));
  }
  return CLV_OK;
}

static bool uses_workers(const clv_blueprint *b) {
  for (size_t i = 0; i < b->config->n_workers; i++)
    if (b->is_worker_used[i]) return true;
  return false;
}

static bool has_secret_files(const clv_blueprint *b) {
  bool has_secret_file = false;
  for (uint32_t i = 0; i < b->n_stages; i++)
    has_secret_file |= b->stages[i].worker < 0 && b->config->stages[i].weights_secret;
  return has_secret_file;
}

clv_code clv_blueprint_read_ledger(clv_blueprint *b, const clv_sha256 *run_secret, clv_err *err) {
  CLV_AUTO(clv_ledger_freep) clv_ledger *ledger = NULL;
  if (!uses_workers(b)) return CLV_OK;
  CLV_TRY(clv_ledger_open(&ledger, err));
  CLV_AUTO(free_ledger_search) ledger_search r = {.b = b, .ledger = ledger};
  CLV_TRY(
      clv_alloc((size_t)b->full_graph->n_nodes, sizeof *b->known_reasons, &b->known_reasons, err));
  for (uint32_t i = 0; has_secret_files(b) && i < b->n_stages; i++)
    if (b->stages[i].worker >= 0) CLV_TRY(look_up_stage_files(&r, i, err));
  if (r.n_worker_row_hashes)
    qsort(r.worker_row_hashes, r.n_worker_row_hashes, sizeof *r.worker_row_hashes, compare_hashes);
  for (uint32_t i = 0; i < b->n_stages; i++)
    if (b->stages[i].worker < 0) CLV_TRY(look_up_stage(&r, run_secret, i, err));
  CLV_TRY(clv_blueprint_find_plain_weights(b, err));
  CLV_TRY(copy_reasons_of_owners(b, err));
  CLV_TRY(clv_privacy_analyze(b, err));
  return clv_blueprint_make_egress_table(b, err);
}

void clv_known_layers_describe(const clv_blueprint *b, bool json, clv_bytes *out) {
  const char *separator = "";
  if (json) clv_bytes_puts(out, "[");
  for (int k = 0; b->known_reasons && k < b->full_graph->n_nodes; k++) {
    const clv_node *n = &b->full_graph->nodes[k];
    if (!b->known_reasons[k]) continue;
    if (!json)
      clv_bytes_printf(out, "known: layer %u '%.64s' %s\n", n->layer, n->name, b->known_reasons[k]);
    if (!json) continue;
    clv_bytes_printf(out, "%s{\"layer\":%u,\"name\":", separator, n->layer);
    clv_bytes_add_json(out, n->name);
    clv_bytes_puts(out, ",\"why\":");
    clv_bytes_add_json(out, b->known_reasons[k]);
    clv_bytes_puts(out, "}");
    separator = ",";
  }
  if (json) clv_bytes_puts(out, "]");
}

clv_code clv_blueprint_check_privacy(const clv_blueprint *b, clv_err *err) {
  /* clv_look_refuse_readable comes first, because its message has the result of the look, the
   * measurement of what tensors show */
  CLV_TRY(clv_look_refuse_readable(b, err));
  CLV_TRY(clv_privacy_check(b, err));
  return clv_cache_check(b, err);
}
