/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements the function table of the simulated device: checks the arguments of each call and
 * enqueues it on a stream.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/sim/sim_int.h"

sim_state sim;

enum { WORKSPACE = 4096, ALIGNED = 256, OPERAND_ALIGNED = 16 };

/* ---- the simulation's lock, and planned failures of the device ------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int lock_simulation(void) {
  pthread_mutex_lock(&lock);
  return 0;
}

static void unlock_simulation(const int *held) {
  (void)held;
  pthread_mutex_unlock(&lock);
}

/* Locks the simulation until the end of the scope. */
#define LOCK CLV_AUTO(unlock_simulation) __attribute__((unused)) int held_ = lock_simulation()

/* Counts this call if failures are planned for the device. Returns true if this call must fail. */
static bool is_planned_failure(int device, uint64_t *n_calls, uint64_t planned_call) {
  if (sim.o.failing_device && sim.o.failing_device != 1 + device) return false;
  return ++*n_calls == planned_call;
}

static clv_code check_device(int device, clv_err *err) {
  if (device < 0 || device >= sim.o.n_devices)
    return clv_fail(err, CLV_UNAVAILABLE, "there is no device %d", device);
  sim.counts.n_calls++;
  if (is_planned_failure(device, &sim.n_calls, sim.o.losing_call)) sim.is_broken[device] = true;
  if (sim.is_broken[device])
    return clv_fail(err, CLV_UNAVAILABLE, "device %d: an earlier launch failed, or it is gone",
                    device);
  return CLV_OK;
}

/* Refuses a NULL stream: CUDA's default stream, for which all other streams of the device would
 * wait. */
static clv_code check_stream(const sim_stream *s, clv_err *err) {
  if (s) return check_device(s->device, err);
  sim.counts.n_default_stream_calls++;
  return clv_fail(err, CLV_PRECONDITION, "the default stream is asked for something");
}

static clv_code check_not_captured(const sim_stream *s, clv_err *err) {
  return s->is_capturing ? clv_fail(err, CLV_PRECONDITION, "the stream is captured") : CLV_OK;
}

static _Thread_local uint64_t n_waits_of_thread;

static void count_wait(void) {
  sim.counts.n_waits++;
  n_waits_of_thread++;
}

static clv_code check_may_wait(const sim_stream *s, clv_err *err) {
  count_wait();
  return s ? check_not_captured(s, err) : CLV_OK;
}

static clv_code enqueue_operation(sim_stream *s, const sim_op *op, clv_err *err) {
  sim_enqueue(s, op);
  if (sim.is_broken[s->device]) return check_device(s->device, err);
  return CLV_OK;
}

/* ---- vendor calls about devices -------------------------------------------------------------- */

static clv_code vendor_count_devices(int *ret, clv_err *err) {
  (void)err;
  *ret = sim.o.n_devices;
  return CLV_OK;
}

static clv_code vendor_describe(int device, clv_cuda_info *ret, clv_err *err) {
  LOCK;
  CLV_TRY(check_device(device, err));
  *ret = (clv_cuda_info){.name = "simulated device",
                         .libraries = "simulation",
                         .capability = sim.o.capability ? sim.o.capability : 90,
                         .multiprocessors = 4,
                         .memory_bytes = sim.o.memory_bytes};
  return CLV_OK;
}

/* ---- vendor calls about memory --------------------------------------------------------------- */

static clv_code vendor_allocate(sim_stream *s, size_t bytes, void **ret, clv_err *err) {
  LOCK;
  char *p;
  CLV_TRY(check_stream(s, err));
  CLV_TRY(check_not_captured(s, err));
  sim.counts.n_allocations++;
  if (is_planned_failure(s->device, &sim.n_allocations, sim.o.failing_allocation))
    return clv_fail(err, CLV_EXHAUSTED, "device %d has no %zu bytes left, as planned", s->device,
                    bytes);
  CLV_TRY(sim_memory_allocate(s->device, bytes, &p, err));
  sim_enqueue(s, &(sim_op){.run = sim_run_alloc, .dst = p});
  *ret = p;
  return CLV_OK;
}

static void vendor_free(sim_stream *s, void *p) {
  LOCK;
  clv_err ignored;
  if (!p || (!s && check_stream(s, &ignored) != CLV_OK)) return;
  if (s->is_capturing) sim_report_fault("device memory is given back while its stream is captured");
  sim_memory_free(s->device, p);
  sim_enqueue(s, &(sim_op){.run = sim_run_free, .dst = p});
}

static clv_code vendor_get_memory(int device, size_t *ret_free, size_t *ret_total, clv_err *err) {
  LOCK;
  CLV_TRY(check_device(device, err));
  *ret_total = sim.o.memory_bytes;
  *ret_free = sim.o.memory_bytes - sim_memory_get_used_bytes(device);
  return CLV_OK;
}

static clv_code vendor_host_allocate(size_t bytes, void **ret, clv_err *err) {
  LOCK;
  sim.counts.n_host_allocations++;
  count_wait();
  return sim_host_allocate(bytes, ret, err);
}

static void vendor_host_free(void *p) {
  LOCK;
  if (!p) return;
  count_wait();
  sim_host_free(p);
}

static clv_code vendor_copy_to_device(sim_stream *s, void *dst, const void *host, size_t bytes,
                                      clv_err *err) {
  LOCK;
  CLV_TRY(check_stream(s, err));
  sim_memory_check(s->device, dst, bytes, "what is put");
  sim_host_check(host, bytes, "what is put");
  sim.counts.bytes_to_device += bytes;
  return enqueue_operation(
      s,
      &(sim_op){
          .run = sim_run_copy, .dst = dst, .src = host, .bytes = bytes, .copies_from_host = true},
      err);
}

static clv_code vendor_copy_to_host(sim_stream *s, void *host, const void *src, size_t bytes,
                                    clv_err *err) {
  LOCK;
  CLV_TRY(check_stream(s, err));
  sim_memory_check(s->device, src, bytes, "what is got");
  sim_host_check(host, bytes, "what is got");
  sim.counts.bytes_to_host += bytes;
  return enqueue_operation(
      s,
      &(sim_op){
          .run = sim_run_copy, .dst = host, .src = src, .bytes = bytes, .copies_to_host = true},
      err);
}

static clv_code enqueue_copy(sim_stream *s, void *dst, int dst_device, const void *src,
                             int src_device, size_t bytes, clv_err *err) {
  sim_memory_check(dst_device, dst, bytes, "what is copied to");
  sim_memory_check(src_device, src, bytes, "what is copied");
  if ((char *)dst < (const char *)src + bytes && (const char *)src < (char *)dst + bytes)
    sim_report_fault("a copy of %zu bytes overlaps itself", bytes);
  sim.counts.bytes_between_devices += bytes;
  return enqueue_operation(
      s, &(sim_op){.run = sim_run_copy, .dst = dst, .src = src, .bytes = bytes}, err);
}

static clv_code vendor_copy(sim_stream *s, void *dst, const void *src, size_t bytes, clv_err *err) {
  LOCK;
  CLV_TRY(check_stream(s, err));
  return enqueue_copy(s, dst, s->device, src, s->device, bytes, err);
}

static clv_code vendor_copy_peer(sim_stream *s, void *dst, int dst_device, const void *src,
                                 int src_device, size_t bytes, clv_err *err) {
  LOCK;
  CLV_TRY(check_stream(s, err));
  return enqueue_copy(s, dst, dst_device, src, src_device, bytes, err);
}

static clv_code vendor_fill(sim_stream *s, void *dst, int byte, size_t bytes, clv_err *err) {
  LOCK;
  CLV_TRY(check_stream(s, err));
  sim_memory_check(s->device, dst, bytes, "what is filled");
  return enqueue_operation(
      s, &(sim_op){.run = sim_run_fill, .dst = dst, .byte = byte, .bytes = bytes}, err);
}

/* ---- vendor calls about streams and events --------------------------------------------------- */

static clv_code vendor_stream_new(int device, bool is_urgent, sim_stream **ret, clv_err *err) {
  LOCK;
  (void)is_urgent;
  CLV_TRY(check_device(device, err));
  *ret = sim_stream_new(device);
  return CLV_OK;
}

static void vendor_stream_free(sim_stream *s) {
  LOCK;
  if (!s) return;
  count_wait();
  sim_synchronize_stream(s);
  sim_stream_free(s);
}

static clv_code vendor_stream_finish(sim_stream *s, clv_err *err) {
  LOCK;
  CLV_TRY(check_stream(s, err));
  CLV_TRY(check_may_wait(s, err));
  sim_synchronize_stream(s);
  return sim.is_broken[s->device] ? check_device(s->device, err) : CLV_OK;
}

struct clv_cuda_event {
  clv_cuda_event *next, **at;
  int device;
  bool is_timed;
  sim_mark *mark; /* mark of the event's last recording; NULL: not recorded yet */
  sim_call_stack call_stack;
};

static clv_cuda_event *events;

static clv_code vendor_event_new(int device, bool is_timed, clv_cuda_event **ret, clv_err *err) {
  LOCK;
  CLV_TRY(check_device(device, err));
  CLV_TRY(clv_alloc(1, sizeof **ret, ret, err));
  (*ret)->device = device;
  (*ret)->is_timed = is_timed;
  (*ret)->next = events;
  sim_call_stack_capture(&(*ret)->call_stack);
  events = *ret;
  return CLV_OK;
}

static void vendor_event_free(clv_cuda_event *e) {
  LOCK;
  clv_cuda_event **at = &events;
  if (!e) return;
  while (*at != e) at = &(*at)->next;
  *at = e->next;
  sim_mark_unref(e->mark);
  free(e);
}

static clv_code vendor_event_record(clv_cuda_event *e, sim_stream *s, clv_err *err) {
  LOCK;
  sim_mark *m;
  CLV_TRY(check_stream(s, err));
  CLV_TRY(check_not_captured(s, err));
  m = calloc(1, sizeof *m);
  if (!m) abort();
  sim_mark_unref(e->mark);
  e->mark = m;
  m->n_references = 1;
  return enqueue_operation(s, &(sim_op){.run = sim_run_record, .mark = m}, err);
}

static clv_code vendor_is_event_done(clv_cuda_event *e, bool *ret, clv_err *err) {
  LOCK;
  CLV_TRY(check_device(e->device, err));
  sim_advance_streams(sim_draw_below(16));
  *ret = !e->mark || e->mark->is_done;
  if (e->mark && *ret) sim_order_after(e->mark);
  return CLV_OK;
}

static clv_code vendor_event_finish(clv_cuda_event *e, clv_err *err) {
  LOCK;
  CLV_TRY(check_may_wait(NULL, err));
  CLV_TRY(check_device(e->device, err));
  if (e->mark) sim_synchronize_mark(e->mark);
  return sim.is_broken[e->device] ? check_device(e->device, err) : CLV_OK;
}

static clv_code vendor_measure_ms(clv_cuda_event *begin, clv_cuda_event *end, double *ret,
                                  clv_err *err) {
  LOCK;
  CLV_TRY(check_device(begin->device, err));
  if (!begin->is_timed || !end->is_timed || !begin->mark || !end->mark || !begin->mark->is_done ||
      !end->mark->is_done)
    return clv_fail(err, CLV_PRECONDITION, "an event is not timed, not recorded or not done");
  *ret = end->mark->ms - begin->mark->ms;
  return CLV_OK;
}

static clv_code vendor_stream_wait(sim_stream *s, clv_cuda_event *e, clv_err *err) {
  LOCK;
  CLV_TRY(check_stream(s, err));
  CLV_TRY(check_not_captured(s, err));
  if (!e->mark) return CLV_OK;
  return enqueue_operation(s, &(sim_op){.run = sim_run_wait, .mark = e->mark}, err);
}

/* ---- vendor calls that launch kernels -------------------------------------------------------- */

static clv_code check_launch(const clv_cuda_launch *l, clv_err *err) {
  if (l->block < 1 || l->block > SIM_MAX_THREADS)
    return clv_fail(err, CLV_INVALID, "%s: a block of %u threads; at most %d", l->name, l->block,
                    SIM_MAX_THREADS);
  if (l->grid[0] < 1 || l->grid[1] < 1 || l->grid[0] > INT32_MAX || l->grid[1] > UINT16_MAX)
    return clv_fail(err, CLV_INVALID, "%s: a grid of %u x %u", l->name, l->grid[0], l->grid[1]);
  if (l->shared_bytes > SIM_MAX_SHARED_BYTES)
    return clv_fail(err, CLV_INVALID, "%s: %zu bytes shared; at most %d", l->name, l->shared_bytes,
                    SIM_MAX_SHARED_BYTES);
  if (!l->call) return clv_fail(err, CLV_INVALID, "%s was compiled for a device", l->name);
  return CLV_OK;
}

/* Counts a launch. Launches of a replayed graph are counted, too. */
static void count_launch(int device) {
  sim.counts.n_launches++;
  if (is_planned_failure(device, &sim.n_launches, sim.o.failing_launch))
    sim.is_broken[device] = true;
}

static clv_code vendor_launch(sim_stream *s, const clv_cuda_launch *l, clv_err *err) {
  LOCK;
  sim_call_stack call_stack;
  CLV_TRY(check_stream(s, err));
  CLV_TRY(check_launch(l, err));
  sim_call_stack_capture(&call_stack);
  sim_launch *launch = sim_launch_new(l, &call_stack);
  sim_launch_check(launch, s->device);
  count_launch(s->device);
  return enqueue_operation(s, &(sim_op){.run = sim_run_launch, .launch = launch}, err);
}

/* ---- vendor calls about graphs of captured operations ---------------------------------------- */

struct clv_cuda_graph {
  sim_op *first_op;
};

static size_t n_graphs;

/* True while this thread captures, as in NVIDIA's thread-local capture mode. */
static __thread bool thread_is_capturing;

/* Ends the test with a report if this thread is capturing. Each operation that creates a handle,
 * loads code or allocates memory calls this function, because a capture forbids such work. what:
 * the created object. */
static void check_creates_nothing_in_capture(const char *what) {
  if (thread_is_capturing) sim_report_fault("%s is made while a stream is captured", what);
}

static clv_code vendor_capture_begin(sim_stream *s, clv_err *err) {
  LOCK;
  CLV_TRY(check_stream(s, err));
  CLV_TRY(check_not_captured(s, err));
  if (sim.o.no_graphs) return clv_fail(err, CLV_UNIMPLEMENTED, "no captures, as planned");
  s->is_capturing = thread_is_capturing = true;
  s->last_captured = &s->first_captured;
  return CLV_OK;
}

static clv_code check_captured(const sim_stream *s, clv_err *err) {
  CLV_TRY(check_stream(s, err));
  if (++sim.counts.n_captures != sim.o.failing_capture) return CLV_OK;
  return clv_fail(err, CLV_INTERNAL, "a capture fails, as planned");
}

size_t clv_sim_get_graph_bytes(size_t launches) { return 3000 + 700 * launches; }

static clv_code vendor_capture_end(sim_stream *s, clv_cuda_graph **ret, size_t *ret_bytes,
                                   clv_err *err) {
  LOCK;
  if (!s) return check_stream(s, err);
  if (!s->is_capturing) return clv_fail(err, CLV_PRECONDITION, "the stream is not captured");
  sim_op *first = s->first_captured;
  s->first_captured = NULL;
  s->is_capturing = thread_is_capturing = false;
  clv_code code = check_captured(s, err);
  if (code != CLV_OK) {
    sim_ops_free(first);
    return code;
  }
  *ret = calloc(1, sizeof **ret);
  if (!*ret) abort();
  (*ret)->first_op = first;
  size_t launches = 0;
  for (const sim_op *op = first; op; op = op->next) launches++;
  *ret_bytes = clv_sim_get_graph_bytes(launches);
  n_graphs++;
  return CLV_OK;
}

/* Ends the test with a report if memory that a graph uses has been freed since the capture. */
static void check_graph_memory(const sim_op *op, int device) {
  if (op->launch) sim_launch_check(op->launch, device);
  if (op->copies_from_host) sim_host_check(op->src, op->bytes, "what a graph puts");
  if (op->copies_to_host) sim_host_check(op->dst, op->bytes, "what a graph gets");
  if (op->dst && !op->copies_to_host)
    sim_memory_check(device, op->dst, op->bytes, "what a graph writes");
  if (op->src && !op->copies_from_host)
    sim_memory_check(device, op->src, op->bytes, "what a graph reads");
  if (op->workspace)
    sim_memory_check(device, op->workspace, op->workspace_bytes, "the workspace of a graph");
  for (size_t i = 0; i < CLV_COUNT(op->operands); i++)
    if (op->operands[i]) sim_memory_check(device, op->operands[i], 0, "an operand of a graph");
}

static clv_code vendor_graph_launch(sim_stream *s, clv_cuda_graph *g, clv_err *err) {
  LOCK;
  CLV_TRY(check_stream(s, err));
  CLV_TRY(check_not_captured(s, err));
  sim.counts.n_graph_launches++;
  for (const sim_op *op = g->first_op; op; op = op->next) {
    check_graph_memory(op, s->device);
    if (op->launch) count_launch(s->device);
    sim_enqueue_again(s, op);
  }
  return sim.is_broken[s->device] ? check_device(s->device, err) : CLV_OK;
}

static void vendor_graph_free(clv_cuda_graph *g) {
  LOCK;
  if (!g) return;
  sim_ops_free(g->first_op);
  n_graphs--;
  free(g);
}

/* ---- products and convolutions of cuBLAS and cuDNN ------------------------------------------- */

struct clv_cuda_matmul {
  clv_cuda_matmul_desc d;
  int device;
};
struct clv_cuda_conv {
  clv_cuda_conv_desc d;
  int device;
};

static size_t n_plans;

/* Bytes of a column-major matrix, without the padding after the last column. */
static size_t matrix_bytes(int64_t rows, int64_t columns, int64_t ld, int64_t batch, int64_t stride,
                           size_t value_bytes) {
  return (size_t)((batch - 1) * stride + (columns - 1) * ld + rows) * value_bytes;
}

static clv_code vendor_matmul_new(int device, const clv_cuda_matmul_desc *d, clv_cuda_matmul **ret,
                                  size_t *ret_workspace, clv_err *err) {
  LOCK;
  check_creates_nothing_in_capture("a product");
  CLV_TRY(check_device(device, err));
  if (d->m < 1 || d->n < 1 || d->k < 1 || d->batch < 1 ||
      d->lda < (d->a_is_transposed ? d->k : d->m) || d->ldb < (d->b_is_transposed ? d->n : d->k) ||
      d->ldd < d->m)
    return clv_fail(err, CLV_INVALID, "a product of %lld x %lld x %lld with %lld, %lld, %lld",
                    (long long)d->m, (long long)d->n, (long long)d->k, (long long)d->lda,
                    (long long)d->ldb, (long long)d->ldd);
  CLV_TRY(clv_alloc(1, sizeof **ret, ret, err));
  **ret = (clv_cuda_matmul){*d, device};
  *ret_workspace = WORKSPACE + (size_t)(d->k % 7) * 8;
  n_plans++;
  return CLV_OK;
}

static void vendor_matmul_free(clv_cuda_matmul *m) {
  LOCK;
  n_plans -= m != NULL;
  free(m);
}

static void check_aligned(const void *p, const char *what) {
  if ((uintptr_t)p % ALIGNED) sim_report_fault("%s at %p is not on %d bytes", what, p, ALIGNED);
}

static void check_workspace(int device, const void *p, size_t bytes) {
  sim_memory_check(device, p, bytes, "the workspace of a library");
  check_aligned(p, "the workspace");
}

static clv_code vendor_matmul(sim_stream *s, clv_cuda_matmul *m, const void *a, const void *b,
                              const float *bias, float beta, float *d, void *workspace,
                              clv_err *err) {
  LOCK;
  const clv_cuda_matmul_desc *t = &m->d;
  size_t workspace_bytes = WORKSPACE + (size_t)(t->k % 7) * 8,
         factor_bytes = sim_get_factor_bytes(t->math);
  CLV_TRY(check_stream(s, err));
  sim_memory_check(s->device, a,
                   matrix_bytes(t->a_is_transposed ? t->k : t->m, t->a_is_transposed ? t->m : t->k,
                                t->lda, t->batch, t->stride_a, factor_bytes),
                   "A of a product");
  sim_memory_check(s->device, b,
                   matrix_bytes(t->b_is_transposed ? t->n : t->k, t->b_is_transposed ? t->k : t->n,
                                t->ldb, t->batch, t->stride_b, factor_bytes),
                   "B of a product");
  sim_memory_check(s->device, d, matrix_bytes(t->m, t->n, t->ldd, t->batch, t->stride_d, sizeof *d),
                   "D of a product");
  if (t->epilogue != CLV_CUDA_EPILOGUE_NONE)
    sim_memory_check(s->device, bias, (size_t)t->m * sizeof *bias, "the bias of a product");
  check_workspace(s->device, workspace, workspace_bytes);
  sim.counts.n_products++;
  return enqueue_operation(s,
                           &(sim_op){.run = sim_run_library,
                                     .library_call = sim_matmul_run,
                                     .desc.matmul = *t,
                                     .operands = {(void *)(uintptr_t)a, (void *)(uintptr_t)b,
                                                  (void *)(uintptr_t)bias, d},
                                     .beta = beta,
                                     .workspace = workspace,
                                     .workspace_bytes = workspace_bytes},
                           err);
}

static clv_code vendor_conv_new(int device, const clv_cuda_conv_desc *d, clv_cuda_conv **ret,
                                size_t *ret_workspace, clv_err *err) {
  LOCK;
  check_creates_nothing_in_capture("a convolution");
  CLV_TRY(check_device(device, err));
  if (sim.o.no_cudnn) return clv_fail(err, CLV_UNIMPLEMENTED, "no cuDNN, as planned");
  CLV_TRY(clv_alloc(1, sizeof **ret, ret, err));
  **ret = (clv_cuda_conv){*d, device};
  *ret_workspace = WORKSPACE;
  n_plans++;
  return CLV_OK;
}

static void vendor_conv_free(clv_cuda_conv *c) {
  LOCK;
  n_plans -= c != NULL;
  free(c);
}

static void check_operand(int device, const void *p, size_t bytes, const char *what) {
  sim_memory_check(device, p, bytes, what);
  if ((uintptr_t)p % OPERAND_ALIGNED)
    sim_report_fault("%s at %p is not on %d bytes", what, p, OPERAND_ALIGNED);
}

static clv_code vendor_conv(sim_stream *s, clv_cuda_conv *c, void *x, void *w, void *y, float beta,
                            void *workspace, clv_err *err) {
  LOCK;
  size_t n[3], bytes = sim_get_factor_bytes(c->d.math);
  CLV_TRY(check_stream(s, err));
  if (c->d.math == CLV_CUDA_BF16 && beta > 0)
    return clv_fail(err, CLV_INVALID, "a convolution in bf16 adds to nothing");
  sim_conv_count_values(&c->d, n);
  check_operand(s->device, x, n[0] * bytes, "x of a convolution");
  check_operand(s->device, w, n[1] * bytes, "w of a convolution");
  check_operand(s->device, y, n[2] * bytes, "y of a convolution");
  check_workspace(s->device, workspace, WORKSPACE);
  sim.counts.n_products++;
  return enqueue_operation(s,
                           &(sim_op){.run = sim_run_library,
                                     .library_call = sim_conv_run,
                                     .desc.conv = c->d,
                                     .operands = {x, w, y},
                                     .beta = beta,
                                     .workspace = workspace,
                                     .workspace_bytes = WORKSPACE},
                           err);
}

/* ---- LSTMs of cuDNN -------------------------------------------------------------------------- */

struct clv_cuda_lstm {
  clv_cuda_lstm_desc d;
  clv_cuda_lstm_space lstm_space;
};

static clv_code vendor_lstm_new(sim_stream *s, const clv_cuda_lstm_desc *d, clv_cuda_lstm **ret,
                                clv_cuda_lstm_space *ret_space, clv_err *err) {
  LOCK;
  CLV_TRY(check_stream(s, err));
  /* refused during a capture, because the call may create a handle */
  CLV_TRY(check_not_captured(s, err));
  if (sim.o.no_cudnn) return clv_fail(err, CLV_UNIMPLEMENTED, "no cuDNN, as planned");
  CLV_TRY(clv_alloc(1, sizeof **ret, ret, err));
  (*ret)->d = *d;
  sim_lstm_compute_space(d, &(*ret)->lstm_space);
  *ret_space = (*ret)->lstm_space;
  n_plans++;
  return CLV_OK;
}

static void vendor_lstm_free(clv_cuda_lstm *l) {
  LOCK;
  n_plans -= l != NULL;
  free(l);
}

enum { LSTM_FORWARD = 1 << 0, LSTM_DATA = 1 << 1, LSTM_WEIGHT = 1 << 2 };

/* An operand of an LSTM. call_bits: the calls that use the operand, as bits LSTM_FORWARD, LSTM_DATA
 * and LSTM_WEIGHT; in other calls it is not checked. */
typedef struct lstm_use {
  int call_bits;
  float *p;
  size_t n_values;
  const char *description;
} lstm_use;

static clv_code enqueue_lstm_call(sim_stream *s, const clv_cuda_lstm *l,
                                  const clv_cuda_lstm_args *a, int call,
                                  void (*run)(const sim_op *op), clv_err *err) {
  size_t in = (size_t)(l->d.n * l->d.t * l->d.f), out = (size_t)(l->d.n * l->d.t * l->d.h);
  size_t weights = l->lstm_space.weights / sizeof(float);
  int reserve_calls = l->d.has_backward ? LSTM_FORWARD | LSTM_DATA | LSTM_WEIGHT : 0;
  const lstm_use uses[SIM_OPERANDS] = {
      [SIM_LSTM_WEIGHTS] = {LSTM_FORWARD | LSTM_DATA, a->weights, weights, "weights of an LSTM"},
      [SIM_LSTM_DWEIGHTS] = {LSTM_WEIGHT, a->dweights, weights, "gradients of an LSTM's weights"},
      [SIM_LSTM_X] = {LSTM_FORWARD | LSTM_WEIGHT, a->x, in, "x of an LSTM"},
      [SIM_LSTM_Y] = {LSTM_FORWARD | LSTM_DATA | LSTM_WEIGHT, a->y, out, "y of an LSTM"},
      [SIM_LSTM_DX] = {LSTM_DATA, a->dx, in, "dx of an LSTM"},
      [SIM_LSTM_DY] = {LSTM_DATA, a->dy, out, "dy of an LSTM"},
      [SIM_LSTM_RESERVE] = {reserve_calls, a->reserve, l->lstm_space.reserve / sizeof(float),
                            "the reserve of an LSTM"},
  };
  sim_op op = {.run = sim_run_library,
               .library_call = run,
               .desc.lstm = l->d,
               .workspace = a->workspace,
               .workspace_bytes = l->lstm_space.workspace};
  CLV_TRY(check_stream(s, err));
  if (call != LSTM_FORWARD && !l->d.has_backward)
    return clv_fail(err, CLV_INVALID, "this LSTM was made for forwards alone");
  for (int i = 0; i < SIM_OPERANDS; i++) {
    if (!(uses[i].call_bits & call)) continue;
    sim_memory_check(s->device, uses[i].p, uses[i].n_values * sizeof(float), uses[i].description);
    op.operands[i] = uses[i].p;
  }
  check_aligned(a->reserve, "the reserve of an LSTM");
  check_workspace(s->device, a->workspace, l->lstm_space.workspace);
  return enqueue_operation(s, &op, err);
}

static clv_code vendor_lstm_forward(sim_stream *s, clv_cuda_lstm *l, const clv_cuda_lstm_args *a,
                                    clv_err *err) {
  LOCK;
  return enqueue_lstm_call(s, l, a, LSTM_FORWARD, sim_lstm_run_forward, err);
}

static clv_code vendor_lstm_backward_data(sim_stream *s, clv_cuda_lstm *l,
                                          const clv_cuda_lstm_args *a, clv_err *err) {
  LOCK;
  return enqueue_lstm_call(s, l, a, LSTM_DATA, sim_lstm_run_backward_data, err);
}

static clv_code vendor_lstm_backward_weight(sim_stream *s, clv_cuda_lstm *l,
                                            const clv_cuda_lstm_args *a, clv_err *err) {
  LOCK;
  return enqueue_lstm_call(s, l, a, LSTM_WEIGHT, sim_lstm_run_backward_weight, err);
}

/* ---- the function table of the simulated device ---------------------------------------------- */

static const clv_vendor vendor_table = {
    .abi = CLV_VENDOR_ABI,
    .size = sizeof vendor_table,
    .name = "cuda-sim",
    .count = vendor_count_devices,
    .describe = vendor_describe,
    .allocate = vendor_allocate,
    .free = vendor_free,
    .get_free_bytes = vendor_get_memory,
    .host_allocate = vendor_host_allocate,
    .host_free = vendor_host_free,
    .put = vendor_copy_to_device,
    .get = vendor_copy_to_host,
    .copy = vendor_copy,
    .copy_peer = vendor_copy_peer,
    .fill = vendor_fill,
    .stream_new = vendor_stream_new,
    .stream_free = vendor_stream_free,
    .stream_finish = vendor_stream_finish,
    .event_new = vendor_event_new,
    .event_free = vendor_event_free,
    .event_record = vendor_event_record,
    .event_done = vendor_is_event_done,
    .event_finish = vendor_event_finish,
    .event_ms = vendor_measure_ms,
    .stream_wait = vendor_stream_wait,
    .launch = vendor_launch,
    .capture_begin = vendor_capture_begin,
    .capture_end = vendor_capture_end,
    .graph_launch = vendor_graph_launch,
    .graph_free = vendor_graph_free,
    .matmul_new = vendor_matmul_new,
    .matmul_free = vendor_matmul_free,
    .matmul = vendor_matmul,
    .conv_new = vendor_conv_new,
    .conv_free = vendor_conv_free,
    .conv = vendor_conv,
    .lstm_new = vendor_lstm_new,
    .lstm_free = vendor_lstm_free,
    .lstm_forward = vendor_lstm_forward,
    .lstm_backward_data = vendor_lstm_backward_data,
    .lstm_backward_weight = vendor_lstm_backward_weight,
};

const clv_vendor *clv_sim_make_vendor(const clv_sim_options *options) {
  LOCK;
  sim = (sim_state){.o = *options};
  if (!sim.o.n_devices) sim.o.n_devices = 1;
  if (!sim.o.memory_bytes) sim.o.memory_bytes = (size_t)1 << 30;
  sim_draw_seed(sim.o.seed);
  sim_handle_faults();
  return &vendor_table;
}

uint64_t clv_sim_count_waits_of_thread(void) { return n_waits_of_thread; }

clv_sim_counts clv_sim_get_counts(void) {
  LOCK;
  return sim.counts;
}

size_t clv_sim_count_leaks(void) {
  LOCK;
  size_t n = sim_memory_count_leaks() + sim_streams_count_leaks() + n_plans + n_graphs;
  for (const clv_cuda_event *e = events; e; e = e->next, n++) {
    fputs("cuda-sim: an event is left, made at\n", stderr);
    sim_call_stack_print(&e->call_stack);
  }
  if (n_plans) fprintf(stderr, "cuda-sim: %zu products or convolutions are left\n", n_plans);
  if (n_graphs) fprintf(stderr, "cuda-sim: %zu graphs are left\n", n_graphs);
  return n;
}
