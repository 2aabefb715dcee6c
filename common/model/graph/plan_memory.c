/* SPDX-License-Identifier: Apache-2.0
 *
 * Placement of a plan's buffers. clv_plan_place_bufs runs once, after all steps are written. It
 * lets kernels work in place, lets values be computed directly in the caller's memory, decides for
 * each remaining buffer whether it belongs to the scratch or to the call, and assigns offsets so
 * that buffers whose lifetimes do not overlap share memory.
 */
#include "common/model/graph/plan_int.h"

#include <stdlib.h>

static clv_plan_buf *memory_root_of(const clv_plan *p, int buf) {
  while (p->bufs[buf].memory_root != buf) buf = p->bufs[buf].memory_root;
  return &p->bufs[buf];
}

/* Returns the phase of the plan (forward, backward_input or backward_weight) that has the step. */
static int get_plan_phase(const clv_plan *p, int step) {
  int phase = 0;
  while (phase < PHASES - 1 && step >= p->phase_end[phase]) phase++;
  return phase;
}

/* Lets the output of step `at` share the memory of the step's first input, if the kernel can work
 * in place and no later step reads that input. */
static void share_memory_in_place(clv_plan *p, int at) {
  const clv_plan_node *q = &p->nodes[p->steps[at].node];
  if (!q->kernel->in_place || q->kernel->in_block[0] != q->kernel->out_block) return;
  const clv_plan_step *s = &p->steps[at];
  clv_plan_buf *in = memory_root_of(p, s->in[0]), *out = &p->bufs[s->out];
  bool is_read_twice = false;
  for (int i = 1; i < CLV_MAX_IN; i++)
    is_read_twice |= s->in[i] >= 0 && memory_root_of(p, s->in[i]) == in;
  if (in->space != SPACE_SCRATCH || in->last_step != at || in->bytes != out->bytes || is_read_twice)
    return;
  out->memory_root = in->memory_root;
  in->last_step = out->last_step;
}

/* Lets the gradient of an input share the memory of the output's gradient, if the kernel of
 * backward step `at` can work in place and no later step reads the output's gradient. Never uses
 * the caller's dout in this way, because it is read-only. */
static void share_gradient_memory(clv_plan *p, int at) {
  const clv_plan_step *s = &p->steps[at];
  const clv_plan_node *q = &p->nodes[s->node];
  for (int i = 0; i < q->n_src; i++) {
    if (!(q->kernel->din_in_place_mask >> i & 1) || s->din[i] < 0 ||
        clv_plan_input_grad_layout(p, s->node, i) != q->grad_sum.layout)
      continue;
    clv_plan_buf *dout = memory_root_of(p, q->grad_sum.buf), *din = &p->bufs[s->din[i]];
    if (dout->space != SPACE_SCRATCH || dout->last_step != at || dout->bytes != din->bytes)
      continue;
    din->memory_root = dout->memory_root;
    dout->last_step = din->last_step;
    return;
  }
}

/* Drops step `at` if it copies a value to the caller's memory: the value is then computed there
 * directly. Does nothing if a step of another phase uses the value. */
static void compute_in_caller_memory(clv_plan *p, int at) {
  clv_plan_step *s = &p->steps[at];
  if (s->run != clv_plan_run_copy) return;
  int to = p->bufs[s->dst].space;
  clv_plan_buf *src = memory_root_of(p, s->src);
  if (to == SPACE_SCRATCH || src->space != SPACE_SCRATCH ||
      get_plan_phase(p, src->first_step) != get_plan_phase(p, at) ||
      get_plan_phase(p, src->last_step) != get_plan_phase(p, at))
    return;
  src->space = to;
  s->is_dropped = true;
}

/* Adds a buffer for a copy of each input that backward reads. Forward fills this buffer if the
 * caller does not keep the input unchanged until backward. */
static clv_code add_input_copies(clv_plan *p, clv_err *err) {
  for (int i = 0; i < p->n_inputs; i++) {
    const clv_plan_node *q = &p->nodes[p->input_node[i]];
    if (!q->is_reachable) continue;
    int last = p->bufs[q->value_bufs[0].buf].last_step;
    if (last < p->phase_end[PHASE_FORWARD]) continue;
    CLV_TRY(clv_plan_buf_new(p, p->input_bytes[i], SPACE_SCRATCH, &p->input_copy_buf[i], err));
    p->bufs[p->input_copy_buf[i]].first_step = 0;
    p->bufs[p->input_copy_buf[i]].last_step = last;
  }
  return CLV_OK;
}

/* ---- placing buffers in memory --------------------------------------------------------------- */

static int compare_by_size(const void *a, const void *b) {
  const clv_plan_buf *x = *(clv_plan_buf *const *)a, *y = *(clv_plan_buf *const *)b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  return x->memory_root < y->memory_root ? -1 : 1;
}

/* A buffer of LARGE_BUFFER_BYTES or more is followed by a gap of LARGE_BUFFER_GAP_BYTES. Sizes of
 * large buffers are often multiples of a page; without the gap, a loop over several such buffers
 * would use the same few cache sets for all of them. */
enum { LARGE_BUFFER_BYTES = 64 << 10, LARGE_BUFFER_GAP_BYTES = 17 * 64 };

static size_t padded_size(const clv_plan *p, const clv_plan_buf *b) {
  if (p->backend->memory) return clv_align_up(b->bytes, DEVICE_ALIGN);
  return clv_align_up(b->bytes, 64) + (b->bytes >= LARGE_BUFFER_BYTES ? LARGE_BUFFER_GAP_BYTES : 0);
}

/* Places b at the lowest offset at which it overlaps no placed buffer that lives at the same time
 * (first fit). placed: buffers placed so far, sorted by offset. */
static clv_code place_buf(const clv_plan *p, clv_plan_buf *b, clv_plan_buf **placed, int *n_placed,
                          size_t *extent, clv_err *err) {
  size_t at = 0, end, needed_bytes = padded_size(p, b);
  for (int i = 0; i < *n_placed; i++) {
    const clv_plan_buf *o = placed[i];
    if (o->last_step < b->first_step || o->first_step > b->last_step) continue;
    if (o->offset >= at + needed_bytes) break;
    at = CLV_MAX(at, o->offset + padded_size(p, o));
  }
  if (!clv_add_size(at, needed_bytes, &end) || end > SIZE_MAX / 4)
    return clv_fail(err, CLV_EXHAUSTED, "the activations overflow");
  b->offset = at;
  *extent = CLV_MAX(*extent, end);
  int i = (*n_placed)++;
  for (; i > 0 && placed[i - 1]->offset > at; i--) placed[i] = placed[i - 1];
  placed[i] = b;
  return CLV_OK;
}

static clv_code place_bufs_of_space(clv_plan *p, int space, size_t *ret_extent, clv_err *err) {
  CLV_AUTO(clv_freep) clv_plan_buf **list = NULL;
  CLV_AUTO(clv_freep) clv_plan_buf **placed = NULL;
  int n = 0, n_placed = 0;
  CLV_TRY(clv_alloc((size_t)p->n_bufs, sizeof *list, &list, err));
  CLV_TRY(clv_alloc((size_t)p->n_bufs, sizeof *placed, &placed, err));
  for (int i = 0; i < p->n_bufs; i++)
    if (p->bufs[i].memory_root == i && p->bufs[i].space == space) list[n++] = &p->bufs[i];
  qsort(list, (size_t)n, sizeof(clv_plan_buf *), compare_by_size);
  for (int i = 0; i < n; i++) CLV_TRY(place_buf(p, list[i], placed, &n_placed, ret_extent, err));
  return CLV_OK;
}

/* Reserves memory in the scratch block for copies of the caller's buffers, and for the RNG
 * position. Copies for forward and copies for backward share memory, because they are never used at
 * the same time. Inputs that backward reads are copied to the call's block instead. */
static void place_caller_copies(clv_plan *p) {
  size_t bytes[SPACE_COUNT] = {0}, end[2] = {p->info.scratch_bytes, p->info.scratch_bytes};
  for (int i = 0; i < p->n_bufs; i++)
    bytes[p->bufs[i].space] = CLV_MAX(bytes[p->bufs[i].space], p->bufs[i].bytes);
  for (int i = 0; i < p->n_inputs; i++)
    if (p->input_copy_buf[i] >= 0) bytes[SPACE_IN + i] = 0;
  for (int space = SPACE_OUT; space < SPACE_COUNT; space++) {
    bool is_backward = space == SPACE_DOUT || space >= SPACE_DIN;
    p->copy_offset[space] = end[is_backward];
    end[is_backward] += clv_align_up(bytes[space], 64);
  }
  for (int i = 0; i < p->graph->n_nodes; i++)
    p->uses_rng_position |= p->nodes[i].kernel && p->nodes[i].kernel->reads_rng_position;
  p->rng_position_offset = CLV_MAX(end[0], end[1]);
  p->info.scratch_bytes = p->rng_position_offset +
                          (p->uses_rng_position ? clv_align_up(sizeof(clv_rng_position), 64) : 0);
}

clv_code clv_plan_place_bufs(clv_plan *p, clv_err *err) {
  CLV_TRY(add_input_copies(p, err));
  for (int i = 0; i < p->n_steps; i++)
    if (p->steps[i].run == clv_plan_run_forward) share_memory_in_place(p, i);
  for (int i = 0; i < p->n_steps; i++)
    if (p->steps[i].run == clv_plan_run_backward_input) share_gradient_memory(p, i);
  for (int i = 0; i < p->n_steps; i++) compute_in_caller_memory(p, i);
  for (int i = 0; i < p->n_bufs; i++) {
    clv_plan_buf *b = &p->bufs[i];
    if (b->memory_root == i && b->space == SPACE_SCRATCH &&
        get_plan_phase(p, b->first_step) != get_plan_phase(p, b->last_step))
      b->space = SPACE_CALL;
  }
  CLV_TRY(place_bufs_of_space(p, SPACE_SCRATCH, &p->info.scratch_bytes, err));
  CLV_TRY(place_bufs_of_space(p, SPACE_CALL, &p->info.call_bytes, err));
  if (p->backend->memory) place_caller_copies(p);
  for (int i = 0; i < p->n_bufs; i++) {
    p->bufs[i].space = memory_root_of(p, i)->space;
    p->bufs[i].offset = memory_root_of(p, i)->offset;
  }
  return CLV_OK;
}
