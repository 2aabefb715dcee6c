/* SPDX-License-Identifier: Apache-2.0
 *
 * The loader: one thread fills two slots in turn, and the consumer, which calls clv_loader_next,
 * takes them in turn, so the order of batches does not depend on timing. Both threads use the state
 * of a slot, under the lock; everything else in a slot belongs to one of them at a time:
 *
 *   EMPTY   Holds: no batch. The slot belongs to the loader's thread, which fills it without the
 *           lock. Entered: at first, and from IN_USE by the clv_loader_next after the one that
 *           returned the batch. Left: for READY when the thread has filled the slot.
 *   READY   Holds: a complete batch, or the error of filling it. Entered: from EMPTY. Left: for
 *           IN_USE when clv_loader_next returns the batch or the error.
 *   IN_USE  Holds: the batch that the consumer reads. Entered: from READY. Left: for EMPTY with the
 *           next clv_loader_next.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "master/data/data.h"

typedef enum slot_state { SLOT_EMPTY, SLOT_READY, SLOT_IN_USE } slot_state;

typedef struct slot {
  slot_state state; /* state of the slot, protected by the lock of the loader */
  clv_batch batch;  /* belongs to the thread in state EMPTY, to the consumer afterwards */
  uint32_t *index;
  clv_code code; /* result of filling the slot: CLV_OK, or the code of `err` */
  clv_err err;
} slot;

struct clv_loader {
  const clv_dataset *ds;
  clv_batches *batches;
  uint64_t seed;
  bool is_evaluation;
  slot slots[2];
  /* index of the slot that clv_loader_next returns next; used only by the consumer */
  unsigned next_out_slot;
  pthread_mutex_t lock;
  pthread_cond_t state_changed;
  pthread_t thread;
  bool is_started; /* the thread was started */
  bool must_stop;  /* true: the loader's thread must end; guarded by the lock */
};

static void set_batch_rows(clv_tensor *t, size_t n) {
  size_t row = t->n / (size_t)t->shape.dim[0];
  t->shape.dim[0] = (int64_t)n;
  t->n = row * n;
  t->bytes = t->n * clv_dtype_size(t->dtype);
}

static void fill_slot(clv_loader *l, slot *s) {
  const uint32_t *index;
  clv_batch *b = &s->batch;
  b->at = clv_batches_cursor(l->batches);
  clv_batches_next(l->batches, &index, &b->n);
  b->next = clv_batches_cursor(l->batches);
  b->is_last_of_epoch = b->next.epoch != b->at.epoch;
  s->code = CLV_OK;
  if (b->n == 0) return;
  memcpy(s->index, index, b->n * sizeof *index);
  for (size_t k = 0; k < b->n_inputs; k++) set_batch_rows(b->inputs[k], b->n);
  if (b->y) set_batch_rows(b->y, b->n);
  clv_draw_seed draw = {l->seed, b->at.epoch};
  s->code = clv_batch_fill_inputs(l->ds, l->is_evaluation ? NULL : &draw, s->index, b->n, b->inputs,
                                  b->y, &s->err);
}

static void *load_batches(void *arg) {
  clv_loader *l = arg;
  unsigned next_in_slot = 0;
  pthread_mutex_lock(&l->lock);
  for (;;) {
    slot *s = &l->slots[next_in_slot];
    while (!l->must_stop && s->state != SLOT_EMPTY) pthread_cond_wait(&l->state_changed, &l->lock);
    if (l->must_stop) break;
    pthread_mutex_unlock(&l->lock);
    fill_slot(l, s);
    pthread_mutex_lock(&l->lock);
    s->state = SLOT_READY;
    pthread_cond_broadcast(&l->state_changed);
    next_in_slot ^= 1;
  }
  pthread_mutex_unlock(&l->lock);
  return NULL;
}

static clv_code allocate_slot(clv_loader *l, slot *s, size_t max_records, clv_err *err) {
  clv_batch *b = &s->batch;
  clv_shape y = clv_dataset_y_shape(l->ds, max_records);
  CLV_TRY(clv_alloc(max_records, sizeof *s->index, &s->index, err));
  b->index = s->index;
  for (size_t k = 0; k < clv_dataset_input_count(l->ds); k++, b->n_inputs++) {
    clv_data_input in = clv_dataset_input(l->ds, k, max_records);
    CLV_TRY(clv_tensor_new(in.dtype, &in.shape, &b->inputs[k], err));
  }
  b->x = b->inputs[0];
  if (!clv_dataset_has_labels(l->ds)) return CLV_OK;
  return clv_tensor_new(clv_dataset_y_dtype(l->ds), &y, &b->y, err);
}

/* Starts the thread with all signals blocked, so that signals such as Ctrl-C are delivered to the
 * program's own threads. */
static clv_code start_thread(clv_loader *l, clv_err *err) {
  sigset_t all_signals, signals_before;
  sigfillset(&all_signals);
  pthread_sigmask(SIG_SETMASK, &all_signals, &signals_before);
  int thread_error = pthread_create(&l->thread, NULL, load_batches, l);
  pthread_sigmask(SIG_SETMASK, &signals_before, NULL);
  if (thread_error) return clv_fail(err, CLV_EXHAUSTED, "data loader: %s", strerror(thread_error));
  l->is_started = true;
  return CLV_OK;
}

clv_code clv_loader_new(const clv_dataset *ds, const clv_batches_options *options, clv_loader **ret,
                        clv_err *err) {
  CLV_AUTO(clv_loader_freep) clv_loader *l = NULL;
  CLV_TRY(clv_alloc(1, sizeof *l, &l, err));
  l->ds = ds;
  l->seed = options->seed;
  l->is_evaluation = options->is_evaluation;
  pthread_mutex_init(&l->lock, NULL);
  pthread_cond_init(&l->state_changed, NULL);
  CLV_TRY(clv_batches_new(options, &l->batches, err));
  size_t max_batch_size = CLV_MIN(options->batch_size, options->subset->n);
  for (size_t i = 0; i < CLV_COUNT(l->slots); i++)
    CLV_TRY(allocate_slot(l, &l->slots[i], max_batch_size, err));
  CLV_TRY(start_thread(l, err));
  *ret = clv_steal(&l);
  return CLV_OK;
}

static void stop_thread(clv_loader *l) {
  pthread_mutex_lock(&l->lock);
  l->must_stop = true;
  pthread_cond_broadcast(&l->state_changed);
  pthread_mutex_unlock(&l->lock);
  pthread_join(l->thread, NULL);
}

void clv_loader_free(clv_loader *l) {
  if (!l) return;
  if (l->is_started) stop_thread(l);
  for (size_t i = 0; i < CLV_COUNT(l->slots); i++) {
    slot *s = &l->slots[i];
    for (size_t k = 0; k < s->batch.n_inputs; k++) clv_tensor_unref(s->batch.inputs[k]);
    clv_tensor_unref(s->batch.y);
    free(s->index);
  }
  clv_batches_free(l->batches);
  pthread_cond_destroy(&l->state_changed);
  pthread_mutex_destroy(&l->lock);
  free(l);
}

void clv_loader_freep(clv_loader **l) {
  clv_loader_free(*l);
  *l = NULL;
}

clv_code clv_loader_next(clv_loader *l, clv_batch *ret, clv_err *err) {
  slot *s = &l->slots[l->next_out_slot], *previous_slot = &l->slots[l->next_out_slot ^ 1];
  pthread_mutex_lock(&l->lock);
  if (previous_slot->state == SLOT_IN_USE) {
    previous_slot->state = SLOT_EMPTY;
    pthread_cond_broadcast(&l->state_changed);
  }
  while (s->state != SLOT_READY) pthread_cond_wait(&l->state_changed, &l->lock);
  s->state = SLOT_IN_USE;
  pthread_mutex_unlock(&l->lock);
  l->next_out_slot ^= 1;
  if (s->code != CLV_OK) {
    if (err) *err = s->err;
    return s->code;
  }
  *ret = s->batch;
  return CLV_OK;
}

size_t clv_loader_per_epoch(const clv_loader *l) { return clv_batches_per_epoch(l->batches); }
