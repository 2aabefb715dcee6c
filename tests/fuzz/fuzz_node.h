/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets up a worker's node between its master and another worker, for the fuzz targets that choose
 * the frames that these two send. One .c file of each target includes this header and is linked
 * with --wrap=clv_link_send. The node's quota is small. Whatever arrives, the engine reports no
 * mistake of its own (context_table.h), and the frames that the node sends are valid.
 */
#ifndef CLEAVE_TESTS_FUZZ_NODE_H
#define CLEAVE_TESTS_FUZZ_NODE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/engine/node_int.h"
#include "common/net/link/link_int.h"
#include "tests/fuzz/fuzz_frame.h"
#include "tests/fuzz/never.h"

enum { BATCH = 4, WIDTH = 3, QUOTA = 2 << 20, TENSORS = 48, PEERS = 2, LANES = 3, MODULES = 3 };

typedef struct conversation {
  clv_pool *pool;
  clv_session_node *node;
  clv_link *links[PEERS]; /* links of the master and of the other worker */
  bool is_link_ended[PEERS];
  clv_bytes saved_file; /* file of state that the node wrote */
  float cached_row[WIDTH];
  uint32_t next_generation[MODULES];
} conversation;

static bool refuses_sends; /* true: __wrap_clv_link_send refuses all packets */

/* ---- frames that the node sends -------------------------------------------------------------- */

/* Replaces clv_link_send in the node, by the linker's option --wrap. */
clv_code __wrap_clv_link_send(clv_link *link, clv_packet *p, clv_err *ret_err);
clv_code __wrap_clv_link_send(clv_link *link, clv_packet *p, clv_err *ret_err) {
  clv_bytes head = {0};
  clv_err err;
  size_t payload = 0;
  (void)link;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) payload += p->tensor[i]->bytes;
  bool is_chunked = payload > CLV_WIRE_INLINE_MAX;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) p->frame.tensors[i].transfer_id = is_chunked;
  clv_code code = clv_frame_encode(&p->frame, is_chunked ? 0 : payload, &head, &err);
  if (code != CLV_OK)
    fprintf(stderr, "it sent a %s: %s\n", clv_frame_kind_name(p->frame.kind), err.text);
  NEVER(code != CLV_OK);
  NEVER(clv_frame_is_failure(&p->frame) && p->frame.failure.code == CLV_INTERNAL);
  clv_bytes_done(&head);
  clv_packet_free(p);
  return refuses_sends ? clv_fail(ret_err, CLV_EXHAUSTED, "the link is full") : CLV_OK;
}

/* ---- the node under test --------------------------------------------------------------------- */

static void on_packet(void *user, clv_link *link, clv_packet *p) {
  conversation *c = user;
  (void)link;
  clv_node_post(c->node, p);
}

static void on_link_closed(void *user, clv_link *link, clv_code code, const char *text) {
  conversation *c = user;
  (void)code, (void)text;
  for (int i = 0; i < PEERS; i++) c->is_link_ended[i] |= c->links[i] == link;
}

static void must(clv_code code, const clv_err *err) {
  if (code != CLV_OK) fprintf(stderr, "%s\n", err->text);
  NEVER(code != CLV_OK);
}

static const clv_op module_ops[MODULES] = {CLV_OP_LINEAR, CLV_OP_BATCHNORM, CLV_OP_MSE};

/* Loads a module at the node. Returns CLV_EXHAUSTED if the quota does not suffice. */
static clv_code add_module(conversation *c, uint32_t index, clv_err *err) {
  clv_graph *g;
  clv_module *module;
  clv_attrs attrs;
  clv_op op = module_ops[index];
  int in[2], n_in = op == CLV_OP_MSE ? 2 : 1;
  clv_attr_value out = {.key = CLV_ATTR_OUT, .n_ints = 1, .ints = {WIDTH}};
  CLV_TRY(clv_graph_new(&g, err));
  for (int i = 0; i < n_in; i++)
    CLV_TRY(clv_graph_add_input(g, i ? "y" : "x", CLV_F32, &CLV_SHAPE(BATCH, WIDTH), &in[i], err));
  CLV_TRY(clv_attrs_parse(op, &out, op == CLV_OP_LINEAR, &attrs, err));
  CLV_TRY(clv_graph_add(g, op, &attrs, NULL, 0, in, n_in, &g->output_node, err));
  clv_module_options o = {.index = index,
                          .generation = c->next_generation[index]++,
                          .graph = g,
                          .backend = clv_backend_ref(),
                          .threads = 1,
                          .optimizer = {.kind = CLV_OPTIM_SGD, .lr = 0.1, .momentum = 0.5},
                          .is_trainable = true,
                          .max_calls_in_flight = 1};
  CLV_TRY(clv_module_new(&o, &module, err));
  return clv_node_add_module(c->node, module, err);
}

/* ---- files of state: one file for all names -------------------------------------------------- */

static clv_code save_file(void *user, const char *name, const clv_weights_tensor *list, size_t n,
                          clv_sha256 *ret_digest, uint64_t *ret_bytes, clv_err *err) {
  conversation *c = user;
  NEVER(!clv_is_file_name(name));
  clv_bytes_done(&c->saved_file);
  CLV_TRY(clv_weights_encode(list, n, NULL, 0, &c->saved_file, err));
  CLV_TRY(clv_weights_file_size(list, n, ret_bytes, err));
  NEVER(*ret_bytes != c->saved_file.len);
  return clv_sha256_of(c->saved_file.data, c->saved_file.len, ret_digest, err);
}

static clv_code open_file(void *user, const char *name, size_t max_bytes, clv_weights_file **ret,
                          clv_err *err) {
  conversation *c = user;
  NEVER(!clv_is_file_name(name));
  if (!c->saved_file.len) return clv_fail(err, CLV_NOT_FOUND, "none");
  if (c->saved_file.len > max_bytes)
    return clv_fail(err, CLV_EXHAUSTED, "more than %zu", max_bytes);
  return clv_weights_open_memory(c->saved_file.data, c->saved_file.len, name, ret, err);
}

static clv_code remove_file(void *user, const char *name, clv_err *err) {
  conversation *c = user;
  NEVER(!clv_is_file_name(name));
  if (!c->saved_file.len) return clv_fail(err, CLV_NOT_FOUND, "none");
  clv_bytes_done(&c->saved_file);
  return CLV_OK;
}

/* ---- a cache with one row for all row numbers ------------------------------------------------ */

static clv_code put_rows(void *user, const clv_wire_cached *cache, const int64_t *rows,
                         const clv_tensor *values, clv_err *err) {
  conversation *c = user;
  NEVER(!cache->n_records || !cache->keep_s || values->shape.rank < 1);
  NEVER(values->shape.dim[0] < 1 || !values->bytes);
  if (rows[0] < 0) return clv_fail(err, CLV_INVALID, "a number below 0");
  memcpy(c->cached_row, values->data, CLV_MIN(sizeof c->cached_row, values->bytes));
  return CLV_OK;
}

static clv_code get_row_type(void *user, const clv_wire_cached *cache, size_t n,
                             clv_dtype *ret_dtype, clv_shape *ret_shape, clv_err *err) {
  (void)user;
  NEVER(!n);
  if (cache->key.bytes[0] == 1) return clv_fail(err, CLV_NOT_FOUND, "none");
  *ret_dtype = CLV_F32;
  *ret_shape = CLV_SHAPE((int64_t)n, WIDTH);
  return CLV_OK;
}

static clv_code get_rows(void *user, const clv_wire_cached *cache, const int64_t *rows,
                         clv_tensor *values, clv_err *err) {
  const conversation *c = user;
  (void)cache;
  if (rows[values->shape.dim[0] - 1] < 0) return clv_fail(err, CLV_INVALID, "a number below 0");
  for (int64_t i = 0; i < values->shape.dim[0]; i++)
    memcpy((float *)values->data + i * WIDTH, c->cached_row, sizeof c->cached_row);
  return CLV_OK;
}

/* Starts a conversation. executor: runs the node's work; {0}: the node's own thread runs it. */
static void begin_conversation(conversation *c, clv_executor executor) {
  static const char *const names[PEERS] = {"master", "w2"};
  clv_err err;
  must(clv_pool_new(QUOTA, TENSORS, &c->pool, &err), &err);
  clv_node_options o = {.pool = c->pool,
                        .originator = 7,
                        .executor = executor,
                        .files = {c, save_file, open_file, remove_file},
                        .caches = {c, put_rows, get_row_type, get_rows}};
  must(clv_node_new(&o, &c->node, &err), &err);
  for (uint32_t i = 0; i < MODULES; i++) must(add_module(c, i, &err), &err);
  for (int i = 0; i < PEERS; i++) {
    clv_link_options lo = {
        .peer_name = names[i],
        .pool = c->pool,
        .accept_limits = clv_wire_limits_default(),
        .initial_send_credit = 1 << 20,
        .quota_fails_packet = true,
        .events = {.user = c, .on_packet = on_packet, .on_closed = on_link_closed}};
    must(clv_link_new(&lo, &c->links[i], &err), &err);
  }
  clv_node_set_master(c->node, c->links[0]);
  must(clv_node_add_peer(c->node, names[1], c->links[1], &err), &err);
}

static void end_conversation(conversation *c) {
  clv_context_counts counts;
  clv_node_context_count(c->node, &counts);
  NEVER(!counts.contexts && counts.calls_waiting);
  for (int i = 0; i < PEERS; i++) clv_link_end(c->links[i], CLV_OK, "closed");
  clv_node_set_master(c->node, NULL);
  clv_node_free(c->node);
  for (int i = 0; i < PEERS; i++) clv_link_unref(c->links[i]);
  NEVER(clv_pool_charged_bytes(c->pool) > QUOTA);
  clv_pool_unref(c->pool);
  clv_bytes_done(&c->saved_file);
}

/* ---- frames that the node receives ----------------------------------------------------------- */

/* Gives the node a message as a lane does. PING is left out, because there is no stream for its
 * answer and the link would end. */
static void deliver_frame(conversation *c, uint8_t from, const uint8_t *data, size_t len) {
  clv_link *link = c->links[from % PEERS];
  clv_piece piece = {data, len};
  clv_frame f;
  clv_payload payload;
  clv_wire_limits limits = clv_wire_limits_default();
  clv_err err;
  if (c->is_link_ended[from % PEERS]) return;
  clv_code code = clv_frame_decode(&piece, 1, &limits, &f, &payload, &err);
  if (code == CLV_OK) {
    correct_checksums(&f, &piece, &payload);
    code = clv_link_on_frame(link, from / PEERS % LANES, &f, &piece, &payload, &err);
    if (f.kind == CLV_PING) return;
  }
  if (code != CLV_OK) clv_link_end(link, code, err.text);
}

#endif
