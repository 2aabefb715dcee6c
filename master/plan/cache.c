/* SPDX-License-Identifier: Apache-2.0
 *
 * Cached outputs of a frozen first stage, which the worker of the second stage keeps.
 * clv_cache_check refuses stages that cannot be cached, clv_cache_describe prints the cache for
 * `plan`.
 */
#include <string.h>

#include "master/plan/plan_int.h"

/* Returns why the output of stage 0 differs between epochs; NULL: the output is the same in each
 * epoch. */
static const char *why_output_changes(const clv_blueprint *b) {
  const clv_data_config *d = &b->config->data;
  if (clv_data_has_images(d) && d->images.train_crop != CLV_TRAIN_CROP_CENTER)
    return "data.images.train_crop draws another part of an image in each epoch: set it to center";
  if (clv_data_has_images(d) && d->images.flip > 0)
    return "data.images.flip flips other images in each epoch: set it to 0";
  if (d->objective == CLV_LABELS_MASKED)
    return "data.objective: masked hides other tokens in each epoch";
  return b->stages[0].n_learning_params ? "it learns: add `freeze: true`" : NULL;
}

/* Returns why the output of stage 0 cannot be cached: because of the places of the stages, the
 * shape or findings of the output, or the schedule. NULL: none of these prevents a cache. */
static const char *why_not_cacheable(const clv_blueprint *b) {
  const clv_node *out = &b->stages[0].graph->nodes[b->stages[0].graph->output_node];
  if (b->stages[0].worker >= 0) return "it is not at the master";
  if (b->n_stages < 2 || b->stages[1].worker < 0) return "the stage behind it is not at a worker";
  if (b->stages[0].output_findings & CLV_FINDING_RAW_INPUT)
    return "its outputs are the records themselves, or can be turned into them, and records are "
           "not cached";
  if (b->lengths_input >= 0)
    return "data.packed is true: packed sequences have not one row for each record";
  if (out->shape.rank < 1 || out->shape.dim[0] != b->micro_size ||
      b->full_graph->has_per_input_batches)
    return "its output has not one row for each record";
  if (clv_pipeline_steps_per_round(b->config) > 1)
    return "pipeline.schedule is an asynchronous one, whose batches wait for their round";
  if (b->config->pipeline.micro_batches == CLV_MICRO_AUTO)
    return "pipeline.micro_batches is auto, and its trials would cache random numbers: give a "
           "number";
  return NULL;
}

clv_code clv_cache_check(const clv_blueprint *b, clv_err *err) {
  const clv_session_config *c = b->config;
  for (uint32_t i = 1; i < b->n_stages; i++)
    if (c->stages[i].cache)
      return clv_session_fail_at(c, c->stages[i].cache_pos, err,
                                 "stage '%s' cannot be cached: only the first stage can",
                                 c->stages[i].name);
  if (!c->stages[0].cache) return CLV_OK;
  const char *why_not = why_not_cacheable(b);
  if (!why_not) why_not = why_output_changes(b);
  if (!why_not) return CLV_OK;
  return clv_session_fail_at(c, c->stages[0].cache_pos, err, "stage '%s' cannot be cached: %s",
                             c->stages[0].name, why_not);
}

static bool has_op(const clv_graph *g, clv_op op) {
  for (int i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op == op) return true;
  return false;
}

void clv_cache_describe(const clv_blueprint *b, bool json, clv_bytes *out) {
  const clv_stage_spec *s = &b->config->stages[0];
  const clv_graph *g = b->stages[0].graph;
  unsigned long long ttl_s = s->cache_ttl_ms / 1000;
  if (json && !b->has_cache) clv_bytes_puts(out, "null");
  if (!b->has_cache) return;
  const char *worker_name = b->config->workers[b->stages[1].worker].name;
  bool has_dropout = has_op(g, CLV_OP_DROPOUT) || has_op(g, CLV_OP_STOCHASTIC_DEPTH),
       has_statistics = has_op(g, CLV_OP_BATCHNORM);
  if (json) {
    clv_bytes_puts(out, "{\"stage\":");
    clv_bytes_add_json(out, s->name);
    clv_bytes_puts(out, ",\"worker\":");
    clv_bytes_add_json(out, worker_name);
    clv_bytes_printf(out, ",\"keep_s\":%llu,\"dropout_off\":%s}", ttl_s,
                     has_dropout ? "true" : "false");
    return;
  }
  clv_bytes_printf(
      out,
      "cache: activations of stage '%s' stay on the disk of %s until the run ends, or "
      "%llu s after their last use\n"
      "cache: the stage is fixed, so %s always receives the same activation for a record, "
      "and each of its steps says which record it is\n",
      s->name, worker_name, ttl_s, worker_name);
  if (has_dropout || has_statistics)
    clv_bytes_printf(out, "cache: stage '%s' runs as in evaluations:%s%s%s\n", s->name,
                     has_dropout ? " dropout is off" : "", has_dropout && has_statistics ? "," : "",
                     has_statistics ? " running statistics stay as they are" : "");
}
