/* SPDX-License-Identifier: Apache-2.0 */
#include "common/graph/plan_int.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };

/* Saved buffers get places of their own in the call's block. */
static void place_saved(clv_plan *p) {
  size_t end = 0;
  for (int i = 0; i < p->n_buffers; i++) {
    buffer *b = &p->buffers[i];
    if (!b->saved) continue;
    if (b->place == PLACE_INPUT) {
      p->input_saved[b->index] = true;
      p->input_copy[b->index] = end;
    } else if (b->place == PLACE_SCRATCH) {
      b->place = PLACE_CALL;
      b->offset = end;
    } else {
      continue;
    }
    end = clv_align_up(end + b->bytes, ALIGN);
  }
  for (int i = 0; i < p->graph->n_nodes; i++) {
    node_state *s = &p->nodes[i];
    if (!s->kernel) continue;
    s->saved_offset = end;
    end = clv_align_up(end + s->kernel->saved_bytes, ALIGN);
    s->cache_offset = p->info.cache_bytes;
    p->info.cache_bytes = clv_align_up(p->info.cache_bytes + s->kernel->cache_bytes, ALIGN);
  }
  p->info.call_bytes = end;
}

static bool overlaps(const buffer *a, const buffer *b) {
  return a->first <= b->last && b->first <= a->last;
}

/* First fit: the lowest offset where no buffer alive at the same time lies. Buffers come in the
 * order of their first step, so the result does not depend on anything but the plan. */
static void place_scratch(clv_plan *p) {
  for (int i = 0; i < p->n_buffers; i++) {
    buffer *b = &p->buffers[i];
    if (b->place != PLACE_SCRATCH) continue;
    size_t at = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (int k = 0; k < i; k++) {
        const buffer *o = &p->buffers[k];
        if (o->place != PLACE_SCRATCH || !overlaps(b, o)) continue;
        if (at < o->offset + o->bytes && o->offset < at + b->bytes) {
          at = clv_align_up(o->offset + o->bytes, ALIGN);
          moved = true;
        }
      }
    }
    b->offset = at;
    p->info.scratch_bytes = CLV_MAX(p->info.scratch_bytes, clv_align_up(at + b->bytes, ALIGN));
  }
}

clv_code clv_plan_lay_out(clv_plan *p, clv_err *err) {
  place_saved(p);
  place_scratch(p);
  CLV_TRY(clv_alloc_aligned(p->info.scratch_bytes, &p->scratch, err));
  CLV_TRY(clv_alloc_aligned(p->kernel_scratch, &p->kernel_scratch_block, err));
  CLV_TRY(clv_alloc_aligned(p->info.cache_bytes, &p->cache, err));
  CLV_TRY(clv_alloc_aligned(p->dummy_bytes, &p->dummy, err));
  p->info.scratch_bytes += p->kernel_scratch + p->dummy_bytes;
  return CLV_OK;
}
