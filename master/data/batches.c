/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches of records in an order that depends only on (seed, epoch). So the cursor, the position in
 * that order, is all that must be saved to continue at the next record, in this process or another.
 * The loader and evaluations call clv_batches_next.
 */
#include <stdlib.h>
#include <string.h>

#include "master/data/data.h"

/* RNG stream of the shuffle. No layer of a model has this number, so no dropout and no
 * initialisation uses the stream. */
static const uint32_t shuffle_rng_stream = 0xfffffff0u;

/* ---- order of records ------------------------------------------------------------------------ */

struct clv_batches {
  clv_batches_options o;
  clv_cursor at; /* start of the next batch, unless all epochs are over */
  /* [subset n] order of the records in epoch order_epoch; NULL without shuffling and sampling */
  uint32_t *order;
  uint64_t order_epoch; /* epoch to which the list `order` belongs */
  bool is_order_valid;
  uint32_t *index; /* [batch] records of the current batch */
};

/* Moves to the next epoch if the current one has no further record, or only a short batch that is
 * dropped. */
static void skip_to_next_epoch(clv_batches *b) {
  size_t n_left = b->o.subset->n - (size_t)b->at.index;
  if (n_left == 0 || (b->o.drops_short_last && n_left < b->o.batch_size))
    b->at = (clv_cursor){b->at.epoch + 1, 0};
}

static clv_code check_options(const clv_batches_options *o, clv_err *err) {
  size_t n = o->subset->n;
  if (n == 0) return clv_fail(err, CLV_INVALID, "there are no records to make batches of");
  if (o->batch_size == 0) return clv_fail(err, CLV_INVALID, "batch size 0: at least 1 is expected");
  if (o->drops_short_last && o->batch_size > n)
    return clv_fail(err, CLV_INVALID,
                    "batch size %zu with drop_last leaves no batch of %zu records", o->batch_size,
                    n);
  if (o->start.index > n)
    return clv_fail(err, CLV_INVALID, "data cursor %llu is past the %zu records of an epoch",
                    (unsigned long long)o->start.index, n);
  return CLV_OK;
}

clv_code clv_batches_new(const clv_batches_options *options, clv_batches **ret, clv_err *err) {
  CLV_TRY(check_options(options, err));
  CLV_AUTO(clv_freep) uint32_t *order = NULL;
  CLV_AUTO(clv_freep) uint32_t *index = NULL;
  clv_batches *b;
  size_t max_batch_size = CLV_MIN(options->batch_size, options->subset->n);
  if (options->shuffles || options->sampling_sums)
    CLV_TRY(clv_alloc(options->subset->n, sizeof *order, &order, err));
  CLV_TRY(clv_alloc(max_batch_size, sizeof *index, &index, err));
  CLV_TRY(clv_alloc(1, sizeof *b, &b, err));
  *b = (clv_batches){
      .o = *options, .at = options->start, .order = clv_steal(&order), .index = clv_steal(&index)};
  skip_to_next_epoch(b);
  *ret = b;
  return CLV_OK;
}

void clv_batches_free(clv_batches *b) {
  if (!b) return;
  free(b->order);
  free(b->index);
  free(b);
}

static void make_epoch_order(clv_batches *b) {
  if (b->is_order_valid && b->order_epoch == b->at.epoch) return;
  const clv_rng_key key = {.seed = b->o.seed, .step = b->at.epoch, .layer = shuffle_rng_stream};
  if (b->o.sampling_sums)
    clv_sampling_draw(b->o.sampling_sums, b->o.subset->n, b->o.seed, b->at.epoch, b->order);
  else
    clv_rng_permutation(&key, b->order, b->o.subset->n);
  b->order_epoch = b->at.epoch;
  b->is_order_valid = true;
}

void clv_batches_next(clv_batches *b, const uint32_t **ret_records, size_t *ret_n) {
  *ret_records = b->index;
  *ret_n = 0;
  if (b->o.epochs && b->at.epoch >= b->o.epochs) return;
  if (b->order) make_epoch_order(b);
  size_t at = (size_t)b->at.index, n = CLV_MIN(b->o.batch_size, b->o.subset->n - at);
  for (size_t i = 0; i < n; i++)
    b->index[i] = b->o.subset->index[b->order ? b->order[at + i] : at + i];
  b->at.index += n;
  skip_to_next_epoch(b);
  *ret_n = n;
}

clv_cursor clv_batches_cursor(const clv_batches *b) { return b->at; }

size_t clv_batches_per_epoch(const clv_batches *b) {
  size_t n = b->o.subset->n, n_full_batches = n / b->o.batch_size;
  return n_full_batches + (!b->o.drops_short_last && n % b->o.batch_size != 0);
}

/* ---- sizes of micro-batches ------------------------------------------------------------------ */

size_t clv_chunk_sizes(size_t n, size_t n_chunks, size_t *chunk_sizes) {
  if (n == 0 || n_chunks == 0) return 0;
  size_t chunk_size = n / n_chunks + (n % n_chunks != 0), n_sizes = 0;
  for (; n > chunk_size; n -= chunk_size) chunk_sizes[n_sizes++] = chunk_size;
  chunk_sizes[n_sizes++] = n;
  return n_sizes;
}
