/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds layers that were at another place when a checkpoint was written. While a layer was at the
 * master, a worker may have recorded activations that the layer had hidden. A worker that gets the
 * weights of the layer can undo this hiding. So the layer may move to a worker only if the policy
 * of the host permits that or, without a policy, privacy.release of the session. A layer that moves
 * to the master needs no permission, because the ledger records that a worker had its weights
 * (known_layers.c).
 */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/plan/plan_int.h"

/* ---- search for moved layers ----------------------------------------------------------------- */

void clv_moved_layers_done(clv_moved_layers *m) {
  if (!m) return;
  clv_session_config_free(m->checkpoint_config);
  free(m->list);
  *m = (clv_moved_layers){0};
}

static const char *get_place_name(const clv_session_config *c, int worker) {
  return worker < 0 ? "master" : c->workers[worker].name;
}

static bool is_same_place(const clv_session_config *checkpoint_config, int checkpoint_worker,
                          const clv_session_config *present_config, int present_worker) {
  if (checkpoint_worker < 0 || present_worker < 0) return checkpoint_worker == present_worker;
  return strcmp(checkpoint_config->workers[checkpoint_worker].identity,
                present_config->workers[present_worker].identity) == 0;
}

/* Adds a layer of stage i if it has moved. stage: stage of the checkpoint that has the layer's
 * weights. */
static void add_layer(const clv_blueprint *b, uint32_t i, const clv_node *layer, uint32_t stage,
                      clv_moved_layers *m) {
  const clv_moved_layer *last_moved_layer = m->n ? &m->list[m->n - 1] : NULL;
  bool is_known = m->checkpoint_config && stage < m->checkpoint_config->n_stages;
  int checkpoint_worker = is_known ? m->checkpoint_config->stages[stage].worker : -1,
      present_worker = b->stages[i].planned_worker;
  if (last_moved_layer && strcmp(last_moved_layer->name, layer->name) == 0)
    return; /* an earlier parameter has added the layer already */
  if (is_known ? is_same_place(m->checkpoint_config, checkpoint_worker, b->config, present_worker)
               : present_worker < 0)
    return;
  clv_moved_layer *moved_layer = &m->list[m->n++];
  *moved_layer = (clv_moved_layer){
      .layer = layer->layer,
      .stage = i,
      .old_place =
          is_known ? get_place_name(m->checkpoint_config, checkpoint_worker) : "an unknown place",
      .new_place = get_place_name(b->config, present_worker),
      .needs_release = checkpoint_worker < 0 && present_worker >= 0};
  snprintf(moved_layer->name, sizeof moved_layer->name, "%s", layer->name);
}

static clv_code add_stage(const clv_blueprint *b, uint32_t i, const clv_checkpoint *c,
                          clv_moved_layers *m, clv_err *err) {
  const clv_stage_plan *s = &b->stages[i];
  CLV_AUTO(clv_freep) uint32_t *stages = NULL;
  CLV_TRY(clv_params_find_checkpoint_stages(s->params, c, &stages, err));
  for (int k = 0; k < s->params->n; k++)
    if (stages[k] != CLV_CHECKPOINT_NO_STAGE) /* else the weights stayed in a file of a worker */
      add_layer(b, i, &s->graph->nodes[s->params->list[k].node], stages[k], m);
  return CLV_OK;
}

clv_code clv_moved_layers_find(const clv_blueprint *b, const clv_checkpoint *c,
                               clv_moved_layers *ret, clv_err *err) {
  CLV_AUTO(clv_moved_layers_done) clv_moved_layers m = {0};
  size_t max_layers = 0;
  if (clv_checkpoint_parse_session(c, &m.checkpoint_config, &m.why_unknown) != CLV_OK)
    m.checkpoint_config = NULL;
  for (uint32_t i = 0; i < b->n_stages; i++) max_layers += (size_t)b->stages[i].params->n;
  CLV_TRY(clv_alloc(max_layers, sizeof *m.list, &m.list, err));
  for (uint32_t i = 0; i < b->n_stages; i++) CLV_TRY(add_stage(b, i, c, &m, err));
  *ret = m;
  m = (clv_moved_layers){0};
  return CLV_OK;
}

/* ---- permission of layers to move to a worker ------------------------------------------------ */

static bool is_release_permitted(const clv_session_config *c, const char *layer) {
  for (size_t i = 0; i < c->privacy.release.n; i++)
    if (fnmatch(c->privacy.release.items[i], layer, 0) == 0) return true;
  return false;
}

clv_code clv_release_check(const clv_blueprint *b, clv_err *err) {
  const clv_session_config *c = b->config;
  for (size_t i = 0; i < c->privacy.release.n; i++) {
    int k = 0;
    while (k < b->full_graph->n_nodes &&
           fnmatch(c->privacy.release.items[i], b->full_graph->nodes[k].name, 0) != 0)
      k++;
    if (k == b->full_graph->n_nodes)
      return clv_session_fail_at(c, c->privacy.release_pos, err,
                                 "privacy.release: '%s' matches no layer",
                                 c->privacy.release.items[i]);
  }
  return CLV_OK;
}

/* Appends name number n, counted from 0, to a list such as "a, b, c". After MAX_SHOWN_NAMES names
 * it appends ", ..." once and no more names. */
static void append_name(clv_bytes *out, const char *name, size_t n) {
  enum { MAX_SHOWN_NAMES = 6 };
  if (n < MAX_SHOWN_NAMES) clv_bytes_printf(out, "%s%.100s", n ? ", " : "", name);
  if (n == MAX_SHOWN_NAMES) clv_bytes_puts(out, ", ...");
}

static clv_code fail_layers_need_release(const clv_blueprint *b, const clv_moved_layer *first_layer,
                                         const char *names, size_t n, clv_err *err) {
  return clv_session_fail_at(
      b->config, b->config->stages[first_layer->stage].at_pos, err,
      "layer%s %s would move from %s to %s, which could then undo %s in activations that it may "
      "have recorded: keep %s at the master, or permit it with privacy.release: [%s]",
      CLV_S(n), names, first_layer->old_place, first_layer->new_place, n > 1 ? "them" : "it",
      n > 1 ? "them" : "it", names);
}

clv_code clv_moved_layers_check(const clv_blueprint *b, const clv_moved_layers *m, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes names = {0};
  const clv_moved_layer *first = NULL;
  size_t n = 0;
  for (size_t i = 0; i < m->n; i++) {
    const clv_moved_layer *x = &m->list[i];
    if (!x->needs_release) continue;
    if (b->policy) CLV_TRY(clv_policy_check_release(b->policy, x->name, x->new_place, err));
    if (b->policy || is_release_permitted(b->config, x->name)) continue;
    if (!first) first = x;
    append_name(&names, x->name, n++);
  }
  if (names.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return first ? fail_layers_need_release(b, first, names.data, n, err) : CLV_OK;
}

/* ---- moved layers as text -------------------------------------------------------------------- */

void clv_moved_layers_describe(const clv_moved_layers *m, bool json, clv_bytes *out) {
  if (json) clv_bytes_puts(out, "[");
  for (size_t i = 0; i < m->n; i++) {
    const clv_moved_layer *x = &m->list[i];
    if (!json)
      clv_bytes_printf(
          out, "moved: layer %u '%.64s' from %s to %s%s\n", x->layer, x->name, x->old_place,
          x->new_place,
          x->needs_release ? ", which can undo it in activations that it recorded" : "");
    if (!json) continue;
    clv_bytes_printf(out, "%s{\"layer\":%u,\"name\":", i ? "," : "", x->layer);
    clv_bytes_add_json(out, x->name);
    clv_bytes_puts(out, ",\"from\":");
    clv_bytes_add_json(out, x->old_place);
    clv_bytes_puts(out, ",\"to\":");
    clv_bytes_add_json(out, x->new_place);
    clv_bytes_printf(out, ",\"released\":%s}", x->needs_release ? "true" : "false");
  }
  if (json) clv_bytes_puts(out, "]");
}
