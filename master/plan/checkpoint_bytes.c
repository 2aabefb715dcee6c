/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes how many bytes the checkpoints that stay at workers take: the newest checkpoints, the
 * best one, and the one that is being written. `plan` and `check` print these bytes, and `doctor`
 * compares them with the quota that a worker grants.
 */
#include <string.h>

#include "master/plan/plan_int.h"

/* Upper limits in bytes. FILE_HEADER_BYTES: header of a file, without the entries of its tensors;
 * TENSOR_ENTRY_BYTES: entry of a tensor in the header, without the tensor's name. */
enum { FILE_HEADER_BYTES = 512, TENSOR_ENTRY_BYTES = 160 };

/* Returns the bytes of a tensor in a file, with its entry in the file's header. */
static uint64_t count_tensor_bytes(const clv_param *p, uint64_t value_bytes) {
  return value_bytes + TENSOR_ENTRY_BYTES + strlen(p->name);
}

/* Returns the bytes of the two files, weights and optimiser state, of a stage in a checkpoint; 0:
 * the stage has no state. */
static uint64_t count_stage_bytes(const clv_blueprint *b, uint32_t stage) {
  const clv_params *params = b->stages[stage].params;
  uint64_t bytes = 0, n_moments = clv_blueprint_moment_count(b);
  for (int k = 0; k < params->n; k++) {
    const clv_param *p = &params->list[k];
    size_t value_bytes;
    if (clv_shape_bytes(&p->shape, p->dtype, &value_bytes, NULL) != CLV_OK ||
        !clv_is_param_checkpointed(&b->config->stages[stage], p))
      continue;
    bytes += count_tensor_bytes(p, value_bytes);
    if (p->trainable && !p->is_fixed) bytes += n_moments * count_tensor_bytes(p, value_bytes);
  }
  return bytes ? bytes + 2 * FILE_HEADER_BYTES : 0;
}

/* Returns the bytes of the averaged weights (train.ema) of all stages. */
static uint64_t count_ema_bytes(const clv_blueprint *b) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < b->n_stages; i++)
    for (int k = 0; k < b->stages[i].params->n; k++) {
      const clv_param *p = &b->stages[i].params->list[k];
      if (p->trainable && !p->is_fixed) bytes += p->bytes;
    }
  return bytes;
}

void clv_ema_describe(const clv_blueprint *b, bool json, clv_bytes *out) {
  const clv_train_config *t = &b->config->train;
  uint64_t bytes = count_ema_bytes(b);
  char size_text[24];
  if (!(t->ema > 0)) return;
  if (json)
    clv_bytes_printf(out, ",\"ema\":{\"decay\":%.17g,\"warmup\":%s,\"bytes\":%llu}", t->ema,
                     t->ema_warmup ? "true" : "false", (unsigned long long)bytes);
  else
    clv_bytes_printf(
        out,
        "averages of the trained weights (train.ema %g%s): %s in all, in the memory of "
        "each stage's node and in checkpoints; eval, predict and export take them "
        "with --weights ema\n",
        t->ema, t->ema_warmup ? ", with warm-up" : "",
        clv_format_size(bytes, size_text, sizeof size_text));
}

uint64_t clv_blueprint_kept_checkpoint_count(const clv_blueprint *b) {
  const clv_session_config *c = b->config;
  return c->checkpoint.keep + (c->checkpoint.best != CLV_BEST_NONE) + 1;
}

uint64_t clv_blueprint_max_kept_bytes(const clv_blueprint *b, int worker) {
  uint64_t bytes = 0;
  if (clv_session_checkpoint_home(b->config) == CLV_HOME_ALWAYS) return 0;
  for (uint32_t i = 0; i < b->n_stages; i++)
    if (b->stages[i].worker == worker) bytes += count_stage_bytes(b, i);
  return bytes * clv_blueprint_kept_checkpoint_count(b);
}

/* Appends the names of those stages at a worker that have state in checkpoints. */
static void append_stage_names(const clv_blueprint *b, int worker, clv_bytes *out) {
  int n = 0;
  for (uint32_t i = 0; i < b->n_stages; i++)
    if (b->stages[i].worker == worker && count_stage_bytes(b, i))
      clv_bytes_printf(out, "%s'%s'", n++ ? ", " : "", b->config->stages[i].name);
}

static void append_text_kept_bytes(const clv_blueprint *b, int worker, uint64_t bytes,
                                   clv_bytes *out) {
  const uint64_t n_copies = clv_blueprint_kept_checkpoint_count(b);
  char copy_size[24], total_size[24];
  clv_bytes_puts(out, "checkpoints of ");
  append_stage_names(b, worker, out);
  clv_bytes_printf(out,
                   " stay at worker '%s' as plain files if it has a state_dir: %s each, "
                   "allow[].state_bytes of %s for %llu of them (checkpoint.keep + 1%s)\n",
                   b->config->workers[worker].name,
                   clv_format_size(bytes / n_copies, copy_size, sizeof copy_size),
                   clv_format_size(bytes, total_size, sizeof total_size),
                   (unsigned long long)n_copies,
                   b->config->checkpoint.best == CLV_BEST_NONE ? "" : ", and the best one");
}

static void append_json_kept_bytes(const clv_blueprint *b, int worker, uint64_t bytes, int index,
                                   clv_bytes *out) {
  clv_bytes_puts(out, index ? ",{\"worker\":" : "{\"worker\":");
  clv_bytes_add_json(out, b->config->workers[worker].name);
  clv_bytes_printf(out, ",\"copies\":%llu,\"state_bytes\":%llu}",
                   (unsigned long long)clv_blueprint_kept_checkpoint_count(b),
                   (unsigned long long)bytes);
}

void clv_kept_bytes_describe(const clv_blueprint *b, bool json, clv_bytes *out) {
  int n = 0;
  if (json) clv_bytes_puts(out, "[");
  for (int i = 0; i < (int)b->config->n_workers; i++) {
    uint64_t bytes = clv_blueprint_max_kept_bytes(b, i);
    if (bytes && json) append_json_kept_bytes(b, i, bytes, n++, out);
    if (bytes && !json) append_text_kept_bytes(b, i, bytes, out);
  }
  if (json) clv_bytes_puts(out, "]");
}
