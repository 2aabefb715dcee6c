/* SPDX-License-Identifier: Apache-2.0
 *
 * Printing of a plan: clv_plan_describe lists its steps, for tests and for people.
 */
#include "common/model/graph/plan_int.h"

#include <stdio.h>
#include <string.h>

static const char *space_name(int space, char *buf, size_t len) {
  static const char *const names[] = {"scratch", "call", "output", "output gradient"};
  if (space < SPACE_IN) return names[space];
  snprintf(buf, len, "input %d%s", (space - SPACE_IN) % CLV_MAX_INPUTS,
           space >= SPACE_DIN ? " gradient" : "");
  return buf;
}

static void print_block(int layout, clv_bytes *out) {
  clv_bytes_printf(out, "%d%s%s", clv_layout_block(layout),
                   clv_layout_is_channels_last(layout) ? " last" : "",
                   clv_layout_is_bf16(layout) ? " bf16" : "");
}

static void print_blocks(int from, int to, clv_bytes *out) {
  clv_bytes_puts(out, " block ");
  print_block(from, out);
  clv_bytes_puts(out, ">");
  print_block(to, out);
}

/* Writes the names of the ops that a node's kernel computes, such as "batchnorm+relu". */
static void format_op_names(const clv_plan *p, int node, char *buf, size_t len) {
  const clv_plan_node *q = &p->nodes[node];
  size_t at =
      (size_t)snprintf(buf, len, "%s", clv_op_name(p->graph->nodes[q->first_fused_node].op));
  for (int i = 1; i < q->n_fused; i++)
    at += (size_t)snprintf(buf + at, len - at, "+%s",
                           clv_op_name(p->graph->nodes[q->fused_nodes[i]].op));
  if (q->fused_tail_flags & CLV_TAIL_RELU_FORWARD) snprintf(buf + at, len - at, "+relu");
}

static void describe_kernel(const clv_plan *p, const clv_plan_step *s, clv_bytes *out) {
  const clv_plan_node *q = &p->nodes[s->node];
  const clv_node *n = &p->graph->nodes[s->node];
  char shape[160], where[32], size[32], op[64];
  const clv_plan_buf *b = &p->bufs[s->out];
  format_op_names(p, s->node, op, sizeof op);
  clv_bytes_printf(out, "  %-16s %-16s %-14s %s", s->step_name, n->name, op,
                   clv_shape_format(&n->shape, shape, sizeof shape));
  print_blocks(q->kernel->in_block[0], q->kernel->out_block, out);
  clv_bytes_printf(out, ", %s in %s, %s\n", clv_format_size(b->bytes, size, sizeof size),
                   space_name(b->space, where, sizeof where),
                   q->kernel->impl ? q->kernel->impl : "?");
}

static void describe_move(const clv_plan *p, const clv_plan_step *s, clv_bytes *out) {
  const clv_node *n = &p->graph->nodes[s->node];
  char shape[160], where[32];
  clv_bytes_printf(out, "  %-16s %-16s %-14s %s", s->step_name, n->name, "",
                   clv_shape_format(&n->shape, shape, sizeof shape));
  if (s->src_layout != s->dst_layout) print_blocks(s->src_layout, s->dst_layout, out);
  clv_bytes_printf(out, " to %s\n", space_name(p->bufs[s->dst].space, where, sizeof where));
}

bool clv_plan_node_uses_ref(const clv_plan *p, int node) {
  const clv_kernel *k = p->nodes[node].kernel;
  return k && p->backend != clv_backend_ref() && k->impl && strcmp(k->impl, "ref") == 0;
}

void clv_plan_describe(const clv_plan *p, clv_bytes *out) {
  static const char *const phases[PHASES] = {"forward", "backward_input", "backward_weight"};
  char a[32], b[32], c[32];
  clv_bytes_printf(
      out, "batch %lld, %s%s%s, %s, backend %s, %d thread%s\n", (long long)p->options.batch,
      clv_dtype_name(p->options.dtype), p->options.bf16 ? ", conv2d and linear in bf16" : "",
      p->options.tf32 ? ", factors in tf32" : "", p->options.training ? "training" : "evaluation",
      p->backend->name, p->options.threads, p->options.threads == 1 ? "" : "s");
  clv_bytes_printf(out,
                   "%s per call, %s scratch, %s weight cache; reorders %d+%d, %d on new weights\n",
                   clv_format_size(p->info.call_bytes, a, sizeof a),
                   clv_format_size(p->info.scratch_bytes, b, sizeof b),
                   clv_format_size(p->info.weight_cache_bytes, c, sizeof c),
                   p->info.reorders_forward, p->info.reorders_backward, p->info.reorders_refresh);
  for (int phase = 0, i = 0; phase < PHASES; phase++) {
    clv_bytes_printf(out, "%s:\n", phases[phase]);
    for (; i < p->phase_end[phase]; i++) {
      const clv_plan_step *s = &p->steps[i];
      if (s->src < 0 && s->dst < 0)
        describe_kernel(p, s, out);
      else
        describe_move(p, s, out);
    }
  }
}
