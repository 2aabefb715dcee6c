/* SPDX-License-Identifier: Apache-2.0
 *
 * Slabs: records of one size, taken from blocks and reused through a free list.
 */
#include <stdlib.h>
#include <string.h>

#include "common/net/fair/fair.h"
#include "common/net/fair/free_list_int.h"

enum { SLAB_RECORDS = 64 }; /* records in each block, if records_per_block is 0 */

typedef struct slab_block {
  struct slab_block *next;
  _Alignas(16) char records[];
} slab_block;

static clv_code add_block(clv_pool *pool, clv_slab *s, clv_err *err) {
  size_t n_records = s->records_per_block ? s->records_per_block : SLAB_RECORDS;
  size_t bytes = sizeof(slab_block) + n_records * s->record_size;
  slab_block *b;
  CLV_TRY(clv_pool_charge(pool, bytes, err));
  clv_code code = clv_alloc(1, bytes, &b, err);
  if (code != CLV_OK) {
    clv_pool_discharge(pool, bytes);
    return code;
  }
  b->next = s->blocks;
  s->blocks = b;
  for (size_t i = 0; i < n_records; i++)
    clv_free_list_push(&s->free_list, b->records + i * s->record_size, s->record_size);
  return CLV_OK;
}

clv_code clv_slab_alloc(clv_pool *pool, clv_slab *s, void *ret_pp, clv_err *err) {
  if (s->n_records_used == s->max_records)
    return clv_fail(err, CLV_EXHAUSTED, "more than %u %s in one session", s->max_records,
                    s->record_name);
  if (!s->free_list) CLV_TRY(add_block(pool, s, err));
  void *record = clv_free_list_pop(&s->free_list, s->record_size);
  memset(record, 0, s->record_size);
  s->n_records_used++;
  *(void **)ret_pp = record;
  return CLV_OK;
}

void clv_slab_recycle(clv_slab *s, void *record) {
  clv_free_list_push(&s->free_list, record, s->record_size);
  s->n_records_used--;
}

void clv_slab_clear(clv_slab *s) {
  if (!s) return;
  for (slab_block *b = s->blocks, *next; b; b = next) {
    next = b->next;
    free(b);
  }
}

clv_slab clv_slab_make(size_t size, uint32_t limit, const char *record_name) {
  return (clv_slab){
      .record_size = clv_align_up(size, 16), .max_records = limit, .record_name = record_name};
}
