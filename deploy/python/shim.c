/* SPDX-License-Identifier: Apache-2.0 */
#include "shim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- record of what was sent ----------------------------------------------------------------- */

typedef struct sent_row {
  struct sent_row *next; /* in the order of first sending */
  struct sent_row *next_in_slot;
  shim_sent sent;
  char texts[]; /* module, name, worker */
} sent_row;

typedef struct notice {
  struct notice *next;
  char text[SHIM_NOTICE];
} notice;

enum { SLOTS = 1024, MAX_NOTICES = 256 };
/* A killed worker raises within 1 s: its host must refuse connections for this time. */
enum { REFUSED_MS = 500 };

struct shim_record {
  pthread_mutex_t lock;
  sent_row *slots[SLOTS], *first, **end;
  notice *notices, **notices_end;
  size_t n_notices;
  atomic_bool is_interrupted;
};

shim_record *shim_record_new(void) {
  shim_record *record = calloc(1, sizeof *record);
  if (!record) return NULL;
  pthread_mutex_init(&record->lock, NULL);
  record->end = &record->first;
  record->notices_end = &record->notices;
  return record;
}

void shim_record_free(shim_record *record) {
  if (!record) return;
  for (sent_row *row = record->first, *next; row; row = next) {
    next = row->next;
    free(row);
  }
  for (notice *one = record->notices, *next; one; one = next) {
    next = one->next;
    free(one);
  }
  pthread_mutex_destroy(&record->lock);
  free(record);
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n) {
  for (const unsigned char *b = bytes; n--; b++) hash = (hash ^ *b) * 0x100000001b3;
  return hash;
}

static uint64_t hash_sending(const cleave_sending *what) {
  uint64_t numbers[] = {what->kind,  what->input,          what->optimizer,        what->relayed,
                        what->dtype, (uint64_t)what->rank, (uintptr_t)what->worker};
  uint64_t hash = hash_bytes(0xcbf29ce484222325, numbers, sizeof numbers);
  hash = hash_bytes(hash, what->worker, strlen(what->worker));
  hash = hash_bytes(hash, what->module, strlen(what->module));
  return hash_bytes(hash, what->name, strlen(what->name));
}

/* True if both shapes have the same sample; state has no samples and is compared completely. */
static bool is_same_shape(const shim_sent *sent, const cleave_sending *what) {
  int first = what->kind == CLEAVE_SENDING_WEIGHTS || what->rank == 0 ? 0 : 1;
  size_t bytes = sizeof *what->shape * (size_t)(what->rank - first);
  return sent->rank == what->rank && memcmp(sent->shape + first, what->shape + first, bytes) == 0;
}

static bool is_same_row(const shim_sent *sent, const cleave_sending *what) {
  return sent->kind == what->kind && sent->input == what->input &&
         sent->optimizer == what->optimizer && sent->relayed == what->relayed &&
         sent->dtype == what->dtype && is_same_shape(sent, what) &&
         strcmp(sent->worker, what->worker) == 0 && strcmp(sent->module, what->module) == 0 &&
         strcmp(sent->name, what->name) == 0;
}

/* Adds a row. NULL: out of memory. Caller holds the lock. */
static sent_row *add_row(shim_record *record, const cleave_sending *what, sent_row **slot) {
  size_t module = strlen(what->module) + 1, name = strlen(what->name) + 1;
  size_t worker = strlen(what->worker) + 1;
  sent_row *row = calloc(1, sizeof *row + module + name + worker);
  if (!row) return NULL;
  memcpy(row->texts, what->module, module);
  memcpy(row->texts + module, what->name, name);
  memcpy(row->texts + module + name, what->worker, worker);
  row->sent = (shim_sent){.kind = what->kind,
                          .worker = row->texts + module + name,
                          .module = row->texts,
                          .name = row->texts + module,
                          .input = what->input,
                          .optimizer = what->optimizer,
                          .relayed = what->relayed,
                          .dtype = what->dtype,
                          .rank = what->rank};
  memcpy(row->sent.shape, what->shape, sizeof row->sent.shape);
  row->next_in_slot = *slot;
  *slot = *record->end = row;
  record->end = &row->next;
  return row;
}

/* Hook before sending. A tensor that cannot be recorded is not sent. */
static cleave_status record_sending(void *user, const cleave_sending *what, cleave_error *error) {
  shim_record *record = user;
  sent_row **slot = &record->slots[hash_sending(what) % SLOTS];
  pthread_mutex_lock(&record->lock);
  sent_row *row = *slot;
  while (row && !is_same_row(&row->sent, what)) row = row->next_in_slot;
  if (!row) row = add_row(record, what, slot);
  if (row) {
    row->sent.tensors++;
    row->sent.bytes += what->bytes;
    if (what->rank > 0 && what->shape[0] > row->sent.shape[0]) row->sent.shape[0] = what->shape[0];
  }
  pthread_mutex_unlock(&record->lock);
  if (row) return CLEAVE_OK;
  *error =
      (cleave_error){.status = CLEAVE_EXHAUSTED, .text = "out of memory for the egress record"};
  return CLEAVE_EXHAUSTED;
}

bool shim_record_sent(shim_record *record, size_t index, shim_sent *ret_sent) {
  pthread_mutex_lock(&record->lock);
  const sent_row *row = record->first;
  while (row && index--) row = row->next;
  if (row) *ret_sent = row->sent;
  pthread_mutex_unlock(&record->lock);
  return row != NULL;
}

/* Hook for notices. More than MAX_NOTICES that are not read are dropped. */
static void record_notice(void *user, const char *text) {
  shim_record *record = user;
  notice *one = calloc(1, sizeof *one);
  if (!one) return;
  strncpy(one->text, text, sizeof one->text - 1);
  pthread_mutex_lock(&record->lock);
  bool has_room = record->n_notices < MAX_NOTICES;
  if (has_room) {
    *record->notices_end = one;
    record->notices_end = &one->next;
    record->n_notices++;
  }
  pthread_mutex_unlock(&record->lock);
  if (!has_room) free(one);
}

bool shim_record_notice(shim_record *record, char *ret_text, size_t size) {
  pthread_mutex_lock(&record->lock);
  notice *one = record->notices;
  if (one) {
    record->notices = one->next;
    if (!record->notices) record->notices_end = &record->notices;
    record->n_notices--;
  }
  pthread_mutex_unlock(&record->lock);
  if (!one) return false;
  if (size) {
    strncpy(ret_text, one->text, size - 1);
    ret_text[size - 1] = '\0';
  }
  free(one);
  return true;
}

void shim_record_interrupt(shim_record *record) { atomic_store(&record->is_interrupted, true); }

static bool is_interrupted(void *user) {
  shim_record *record = user;
  return atomic_load(&record->is_interrupted);
}

cleave_status shim_open(const char *path, const char *const *workers, size_t n_workers,
                        const char *run, uint64_t deadline_ms, shim_record *record,
                        cleave_runtime **ret_runtime, cleave_error *error) {
  cleave_options options = {.size = sizeof options,
                            .deadline_ms = deadline_ms,
                            .workers = workers,
                            .n_workers = n_workers,
                            .may_send = record_sending,
                            .on_notice = record_notice,
                            .user = record,
                            .interrupted = is_interrupted,
                            .run = run,
                            .refused_ms = REFUSED_MS};
  return cleave_open(path, &options, ret_runtime, error);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void release_future(cleave_runtime *runtime, cleave_future *future) {
  if (future->id) (void)cleave_future_release(runtime, *future, NULL);
  *future = (cleave_future){0};
}

static void release_reference(cleave_runtime *runtime, cleave_reference *reference) {
  if (reference->id) (void)cleave_reference_release(runtime, *reference, NULL);
  *reference = (cleave_reference){0};
}

static void abandon_future(cleave_runtime *runtime, cleave_future *future) {
  if (future->id) (void)cleave_future_cancel(runtime, *future, NULL);
  release_future(runtime, future);
}

/* ---- forward --------------------------------------------------------------------------------- */

static cleave_context context_of(const shim_forward *f) { return f->own.id ? f->own : f->context; }

static cleave_status make_leaves(cleave_runtime *runtime, shim_forward *f, cleave_error *error) {
  for (size_t i = 0; i < f->n_inputs; i++) {
    f->inputs[i].data = (void *)f->input_at[i];
    cleave_status status = cleave_leaf(runtime, context_of(f), &f->inputs[i], f->requires_grad[i],
                                       &f->leaves[i], error);
    if (status != CLEAVE_OK) return status;
  }
  return CLEAVE_OK;
}

/* Calls the modules one after the other; the last value is sent here when it is computed. */
static cleave_status call_chain(cleave_runtime *runtime, shim_forward *f, cleave_error *error) {
  const cleave_reference *inputs = f->leaves;
  size_t n = f->n_inputs;
  for (size_t i = 0; i < f->n_modules; i++) {
    cleave_call_options options = {.size = sizeof options, .to_program = i + 1 == f->n_modules};
    cleave_reference value = {0};
    cleave_status status =
        cleave_call_with(runtime, context_of(f), f->modules[i], inputs, n, &options, &value, error);
    release_reference(runtime, &f->value);
    if (status != CLEAVE_OK) return status;
    f->value = value;
    inputs = &f->value;
    n = 1;
  }
  return CLEAVE_OK;
}

static cleave_status begin_forward(cleave_runtime *runtime, shim_forward *f, cleave_error *error) {
  cleave_status status = CLEAVE_OK;
  if (!f->context.id) {
    cleave_context_options options = {.size = sizeof options, .evaluation = f->evaluation};
    status = cleave_context_open(runtime, &options, &f->own, error);
  }
  if (status == CLEAVE_OK) status = make_leaves(runtime, f, error);
  return status == CLEAVE_OK ? call_chain(runtime, f, error) : status;
}

/* Waits for the value: directly for the first slice, which saves a switch to the thread of futures
 * and back, then by a future with the runtime's deadline. */
static cleave_status wait_for_value(cleave_runtime *runtime, shim_forward *f, uint64_t slice_ms,
                                    bool *ret_done, cleave_error *error) {
  cleave_status status;
  if (!f->future.id) {
    status = cleave_to_here(runtime, f->value, slice_ms, &f->result, error);
    if (status != CLEAVE_DEADLINE) return status;
    *ret_done = false;
    return cleave_to_here_async(runtime, f->value, 0, &f->future, error);
  }
  status = cleave_future_wait_for(runtime, f->future, slice_ms, ret_done, error);
  if (status != CLEAVE_OK || !*ret_done) return status;
  status = cleave_wait(runtime, f->future, slice_ms, &f->result, error);
  if (status == CLEAVE_OK) f->future = (cleave_future){0}; /* cleave_wait has released it */
  return status;
}

/* Releases what a forward holds: after its end if it has a context of its own, or failed. */
static void release_forward(cleave_runtime *runtime, shim_forward *f) {
  abandon_future(runtime, &f->future);
  for (size_t i = 0; i < f->n_inputs; i++) release_reference(runtime, &f->leaves[i]);
  release_reference(runtime, &f->value);
  if (f->own.id && cleave_context_end(runtime, f->own, NULL) != CLEAVE_OK) {
    /* an error of the context is that of a call, which has been returned */
  }
  f->own = (cleave_context){0};
}

/* Copies a small result to memory of Python's. True if it has the size that is expected there. */
static bool copy_to_room(const cleave_tensor *from, uintptr_t room, size_t room_bytes) {
  size_t unit = from->dtype == CLEAVE_I64 ? sizeof(int64_t) : sizeof(float);
  if (!room || cleave_tensor_count(from) * unit != room_bytes) return false;
  memcpy((void *)room, from->data, room_bytes);
  return true;
}

cleave_status shim_forward_begin(cleave_runtime *runtime, shim_forward *forward,
                                 cleave_error *error) {
  forward->begun = true;
  forward->done = forward->is_in_room = false;
  forward->own = (cleave_context){0};
  forward->value = (cleave_reference){0};
  forward->future = (cleave_future){0};
  memset(forward->leaves, 0, sizeof forward->leaves);
  cleave_status status = begin_forward(runtime, forward, error);
  if (status == CLEAVE_OK) return CLEAVE_OK;
  release_forward(runtime, forward);
  forward->done = true;
  return status;
}

cleave_status shim_forward_run(cleave_runtime *runtime, shim_forward *forward, uint64_t slice_ms,
                               cleave_error *error) {
  bool is_ready = true;
  cleave_status status = CLEAVE_OK;
  if (!forward->begun) status = shim_forward_begin(runtime, forward, error);
  if (status != CLEAVE_OK) return status;
  status = wait_for_value(runtime, forward, slice_ms, &is_ready, error);
  if (status == CLEAVE_OK && !is_ready) return CLEAVE_OK;
  if (status == CLEAVE_OK)
    forward->is_in_room = copy_to_room(&forward->result, forward->room, forward->room_bytes);
  if (status != CLEAVE_OK || forward->own.id) release_forward(runtime, forward);
  forward->done = true;
  return status;
}

void shim_forward_abandon(cleave_runtime *runtime, shim_forward *forward) {
  if (forward->begun && !forward->done) release_forward(runtime, forward);
  forward->done = true;
}

void shim_forward_forget(cleave_runtime *runtime, shim_forward *forward) {
  (void)cleave_call_forget(runtime, forward->value, NULL);
  forward->value = (cleave_reference){0};
  release_forward(runtime, forward);
}

void shim_forward_free(shim_forward *forward) { cleave_tensor_free(&forward->result); }

/* ---- backward -------------------------------------------------------------------------------- */

cleave_status shim_backward_begin(cleave_runtime *runtime, shim_backward *backward,
                                  cleave_error *error) {
  const shim_forward *f = backward->forward;
  cleave_backward_options options = {
      .size = sizeof options, .gradients = &backward->gradient, .retain = backward->retain};
  backward->begun = true;
  backward->done = false;
  backward->future = (cleave_future){0};
  backward->gradient.data = (void *)backward->gradient_at;
  return cleave_backward_async(runtime, f->context, &f->value, 1, &options, &backward->future,
                               error);
}

static cleave_status read_gradients(cleave_runtime *runtime, shim_backward *b,
                                    cleave_error *error) {
  const shim_forward *f = b->forward;
  for (size_t i = 0; i < f->n_inputs; i++) {
    if (!f->requires_grad[i]) continue;
    cleave_status status =
        cleave_leaf_gradient_take(runtime, f->leaves[i], &b->gradients[i], error);
    if (status != CLEAVE_OK) return status;
    b->is_in_room[i] = copy_to_room(&b->gradients[i], b->rooms[i], b->room_bytes[i]);
  }
  return CLEAVE_OK;
}

/* Ends a backward whose future is done: cancelling that one would wake the thread of futures. */
static void end_backward(cleave_runtime *runtime, shim_backward *b) {
  release_future(runtime, &b->future);
  if (!b->retain) release_forward(runtime, b->forward);
  b->done = true;
}

cleave_status shim_backward_run(cleave_runtime *runtime, shim_backward *backward, uint64_t slice_ms,
                                cleave_error *error) {
  bool is_ready = true;
  cleave_status status = CLEAVE_OK;
  if (!backward->begun) status = shim_backward_begin(runtime, backward, error);
  if (status == CLEAVE_OK) {
    status = cleave_future_wait_for(runtime, backward->future, slice_ms, &is_ready, error);
    if (!is_ready) return CLEAVE_OK;
  }
  if (status == CLEAVE_OK) status = read_gradients(runtime, backward, error);
  end_backward(runtime, backward);
  return status;
}

void shim_backward_abandon(cleave_runtime *runtime, shim_backward *backward) {
  if (!backward->begun || backward->done) return;
  abandon_future(runtime, &backward->future);
  end_backward(runtime, backward);
}

void shim_backward_free(shim_backward *backward) {
  for (size_t i = 0; i < SHIM_INPUTS; i++) cleave_tensor_free(&backward->gradients[i]);
}

/* ---- step ------------------------------------------------------------------------------------ */

/* The step. Nodes have voted with their last backward, so the decision is known here. */
static cleave_status decide(cleave_runtime *runtime, shim_step *s, cleave_error *error) {
  cleave_step_options options = {.size = sizeof options, .other_square = s->other_square};
  s->result.size = sizeof s->result;
  s->begun = true;
  if (!s->optimizer) return CLEAVE_OK;
  return cleave_step_with(runtime, s->optimizer, s->context, &options, &s->result, error);
}

cleave_status shim_step_run(cleave_runtime *runtime, shim_step *step, uint64_t slice_ms,
                            cleave_error *error) {
  bool is_ready = true;
  cleave_status status = step->begun ? CLEAVE_OK : decide(runtime, step, error);
  step->done = status == CLEAVE_OK && step->keeps_context;
  if (step->done) return CLEAVE_OK;
  if (status == CLEAVE_OK && !step->future.id)
    status = cleave_context_close_async(runtime, step->context, 0, &step->future, error);
  if (status == CLEAVE_OK)
    status = cleave_future_wait_for(runtime, step->future, slice_ms, &is_ready, error);
  if (!is_ready) return CLEAVE_OK;
  release_future(runtime, &step->future);
  step->done = true;
  return status;
}

void shim_step_abandon(cleave_runtime *runtime, shim_step *step) {
  abandon_future(runtime, &step->future);
  step->done = true;
}
