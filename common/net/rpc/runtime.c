/* SPDX-License-Identifier: Apache-2.0
 *
 * Runtime: gRPC, one completion queue and the threads that empty it. A process makes one runtime at
 * start and frees it at exit.
 *
 * The leader alone waits at the queue while load is low. With two waiting threads, gRPC would hand
 * the poll over to the other thread at every event, and such a wake-up costs more than the event
 * (an empty echo took 1.6 times as long). Helpers join when the leader has worked for 90 % of the
 * last millisecond (a large transfer, a burst of resets) or when one of its callbacks blocks. They
 * return to waiting when the queue is empty.
 *
 * New calls use a queue and a thread of their own, so that a flood of calls is detected, and its
 * sender cut off, even while the leader is busy reading it.
 *
 * Spinning. A thread that sleeps in the kernel takes 30 to 50 us to wake up. So after an event the
 * leader polls without sleeping for `spin_us`, unless a thread computes or a helper works.
 */
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/net/rpc/rpc_int.h"
#include "common/net/rpc/stream_int.h"

#ifdef __SANITIZE_THREAD__
#define HAVE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAVE_TSAN 1
#endif
#endif

#ifdef HAVE_TSAN
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
void rpc_tsan_release(void *it) { __tsan_release(it); }
void rpc_tsan_acquire(void *it) { __tsan_acquire(it); }
#else
void rpc_tsan_release(void *it) { (void)it; }
void rpc_tsan_acquire(void *it) { (void)it; }
#endif

/* The codes equal gRPC's, so that a remote failure keeps its meaning. */
_Static_assert((int)CLV_OK == GRPC_STATUS_OK, "code");
_Static_assert((int)CLV_CANCELLED == GRPC_STATUS_CANCELLED, "code");
_Static_assert((int)CLV_UNKNOWN == GRPC_STATUS_UNKNOWN, "code");
_Static_assert((int)CLV_INVALID == GRPC_STATUS_INVALID_ARGUMENT, "code");
_Static_assert((int)CLV_DEADLINE == GRPC_STATUS_DEADLINE_EXCEEDED, "code");
_Static_assert((int)CLV_NOT_FOUND == GRPC_STATUS_NOT_FOUND, "code");
_Static_assert((int)CLV_EXISTS == GRPC_STATUS_ALREADY_EXISTS, "code");
_Static_assert((int)CLV_DENIED == GRPC_STATUS_PERMISSION_DENIED, "code");
_Static_assert((int)CLV_EXHAUSTED == GRPC_STATUS_RESOURCE_EXHAUSTED, "code");
_Static_assert((int)CLV_PRECONDITION == GRPC_STATUS_FAILED_PRECONDITION, "code");
_Static_assert((int)CLV_ABORTED == GRPC_STATUS_ABORTED, "code");
_Static_assert((int)CLV_RANGE == GRPC_STATUS_OUT_OF_RANGE, "code");
_Static_assert((int)CLV_UNIMPLEMENTED == GRPC_STATUS_UNIMPLEMENTED, "code");
_Static_assert((int)CLV_INTERNAL == GRPC_STATUS_INTERNAL, "code");
_Static_assert((int)CLV_UNAVAILABLE == GRPC_STATUS_UNAVAILABLE, "code");
_Static_assert((int)CLV_DATA_LOSS == GRPC_STATUS_DATA_LOSS, "code");
_Static_assert((int)CLV_UNAUTHENTICATED == GRPC_STATUS_UNAUTHENTICATED, "code");

grpc_status_code rpc_status_of_code(clv_code code) {
  return code == CLV_BAD_ANSWER ? GRPC_STATUS_UNAVAILABLE : (grpc_status_code)code;
}

clv_code rpc_code_of_status(grpc_status_code status) {
  bool is_known = status >= GRPC_STATUS_OK && status <= GRPC_STATUS_UNAUTHENTICATED;
  return is_known ? (clv_code)status : CLV_UNKNOWN;
}

gpr_timespec rpc_deadline_in_ms(unsigned ms) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_millis((int64_t)ms, GPR_TIMESPAN));
}

gpr_timespec rpc_no_deadline(void) { return gpr_inf_future(GPR_CLOCK_MONOTONIC); }

/* Forwards gRPC's log lines at debug level. A failed assertion of gRPC is an error, because the
 * process aborts after it. */
static void forward_log(gpr_log_func_args *args) {
  bool is_fatal = strstr(args->message, "assertion failed") != NULL;
  clv_log(is_fatal ? CLV_LOG_ERROR : CLV_LOG_DEBUG, "grpc %s:%d: %s", args->file, args->line,
          args->message);
}

bool rpc_start_batch(grpc_call *call, const grpc_op *ops, size_t n, rpc_tag *tag) {
  rpc_tsan_release(tag);
  return grpc_call_start_batch(call, ops, n, tag, NULL) == GRPC_CALL_OK;
}

static void run_event(const grpc_event *event) {
  rpc_tag *tag = event->tag;
  rpc_tsan_acquire(tag);
  tag->run(tag, event->success != 0);
}

/* ---- helper threads -------------------------------------------------------------------------- */

enum {
  LOAD_WINDOW_NS = 1000000, /* how often the leader measures its load */
  LOAD_PERCENT = 90,        /* load in the window above which the leader wakes a helper */
  HELP_IDLE_MS = 2,         /* a helper without an event for this time returns to waiting */
  STUCK_CHECK_MS = 100,     /* how often a waiting helper checks whether the leader is stuck */
  STUCK_NS = 50000000,      /* the leader is stuck after this time in one callback */
  N_SENDER_THREADS = 1,
  MAX_DEFERRED = 1 << 16,
};

static bool is_leader_stuck(clv_rpc_runtime *runtime) {
  uint64_t since = atomic_load_explicit(&runtime->handling_since_ns, memory_order_relaxed);
  return since != 0 && clv_now_ns() - since > STUCK_NS;
}

/* Waits until a helper is needed. False: the runtime ends. */
static bool wait_as_helper(clv_rpc_runtime *runtime) {
  pthread_mutex_lock(&runtime->lock);
  while (!runtime->is_stopping && runtime->n_helpers_called == 0 && !is_leader_stuck(runtime)) {
    uint64_t until = clv_now_ns() + 1000000ull * STUCK_CHECK_MS;
    struct timespec at = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    pthread_cond_timedwait(&runtime->wake_helpers, &runtime->lock, &at);
  }
  bool go = !runtime->is_stopping;
  if (runtime->n_helpers_called > 0) runtime->n_helpers_called--;
  pthread_mutex_unlock(&runtime->lock);
  return go;
}

static void *helper_thread(void *arg) {
  clv_rpc_runtime *runtime = arg;
  while (wait_as_helper(runtime)) {
    atomic_fetch_add(&runtime->n_active_helpers, 1);
    grpc_event event;
    do {
      event = grpc_completion_queue_next(runtime->queue, rpc_deadline_in_ms(HELP_IDLE_MS), NULL);
      if (event.type == GRPC_OP_COMPLETE) run_event(&event);
    } while (event.type == GRPC_OP_COMPLETE ||
             (event.type == GRPC_QUEUE_TIMEOUT && is_leader_stuck(runtime)));
    atomic_fetch_sub(&runtime->n_active_helpers, 1);
    if (event.type == GRPC_QUEUE_SHUTDOWN) break;
  }
  return NULL;
}

static void wake_helper(clv_rpc_runtime *runtime) {
  pthread_mutex_lock(&runtime->lock);
  if (atomic_load(&runtime->n_active_helpers) + runtime->n_helpers_called + 1 <
      runtime->n_threads) {
    runtime->n_helpers_called++;
    pthread_cond_signal(&runtime->wake_helpers);
  }
  pthread_mutex_unlock(&runtime->lock);
}

/* ---- the leading thread ---------------------------------------------------------------------- */

typedef struct leader {
  clv_rpc_runtime *runtime;
  uint64_t window_start_ns;     /* start of the load window */
  uint64_t window_start_cpu_ns; /* CPU time of this thread at the start of the window */
  uint64_t empty_poll_ns;       /* CPU time in the window spent on polls without an event */
} leader;

static uint64_t thread_cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sample_load(leader *me, uint64_t now) {
  uint64_t window = now - me->window_start_ns;
  if (window < LOAD_WINDOW_NS) return;
  uint64_t cpu = thread_cpu_ns();
  uint64_t cpu_spent_ns = cpu - me->window_start_cpu_ns;
  uint64_t work_ns = cpu_spent_ns > me->empty_poll_ns ? cpu_spent_ns - me->empty_poll_ns : 0;
  if (work_ns > window / 100 * LOAD_PERCENT) wake_helper(me->runtime);
  me->window_start_ns = now;
  me->window_start_cpu_ns = cpu;
  me->empty_poll_ns = 0;
}

static void run_event_as_leader(leader *me, const grpc_event *event) {
  clv_rpc_runtime *runtime = me->runtime;
  uint64_t now = clv_now_ns();
  sample_load(me, now);
  atomic_store_explicit(&runtime->handling_since_ns, now, memory_order_relaxed);
  run_event(event);
  atomic_store_explicit(&runtime->handling_since_ns, 0, memory_order_relaxed);
}

static bool can_spin(clv_rpc_runtime *runtime) {
  return atomic_load_explicit(&runtime->n_computations, memory_order_relaxed) == 0 &&
         atomic_load_explicit(&runtime->n_active_helpers, memory_order_relaxed) == 0;
}

/* Polls until no event has come for spin_us. False: the queue is shut down. */
static bool spin_for_events(leader *me) {
  clv_rpc_runtime *runtime = me->runtime;
  uint64_t spin_ns = 1000ull * atomic_load_explicit(&runtime->spin_us, memory_order_relaxed);
  if (spin_ns == 0) return true;
  uint64_t before = clv_now_ns(), until = before + spin_ns;
  while (before < until && can_spin(runtime)) {
    grpc_event event =
        grpc_completion_queue_next(runtime->queue, gpr_inf_past(GPR_CLOCK_MONOTONIC), NULL);
    if (event.type == GRPC_QUEUE_SHUTDOWN) return false;
    uint64_t after;
    if (event.type == GRPC_OP_COMPLETE) {
      run_event_as_leader(me, &event);
      after = clv_now_ns();
      until = after + spin_ns;
    } else {
      sched_yield(); /* the thread that will post the event may need this core */
      after = clv_now_ns();
      me->empty_poll_ns += after - before;
    }
    before = after;
  }
  return true;
}

static void *leader_thread(void *arg) {
  leader me = {
      .runtime = arg, .window_start_ns = clv_now_ns(), .window_start_cpu_ns = thread_cpu_ns()};
  for (;;) {
    grpc_event event = grpc_completion_queue_next(me.runtime->queue, rpc_no_deadline(), NULL);
    if (event.type == GRPC_QUEUE_SHUTDOWN) break;
    if (event.type == GRPC_OP_COMPLETE) run_event_as_leader(&me, &event);
    if (!spin_for_events(&me)) break;
  }
  return NULL;
}

static void *admission_thread(void *arg) {
  clv_rpc_runtime *runtime = arg;
  for (;;) {
    grpc_event event =
        grpc_completion_queue_next(runtime->admission_queue, rpc_no_deadline(), NULL);
    if (event.type == GRPC_QUEUE_SHUTDOWN) return NULL;
    if (event.type == GRPC_OP_COMPLETE) run_event(&event);
  }
}

/* ---- starting and ending a runtime ----------------------------------------------------------- */

static void make_queues(clv_rpc_runtime *runtime) {
  runtime->queue = grpc_completion_queue_create_for_next(NULL);
  const grpc_completion_queue_attributes attributes = {
      .version = 1,
      .cq_completion_type = GRPC_CQ_NEXT,
      .cq_polling_type = GRPC_CQ_NON_POLLING,
  };
  runtime->admission_queue = grpc_completion_queue_create(
      grpc_completion_queue_factory_lookup(&attributes), &attributes, NULL);
}

static clv_code start_threads(clv_rpc_runtime *runtime, unsigned n, clv_err *err) {
  CLV_TRY(rpc_pool_init(&runtime->sender_pool, N_SENDER_THREADS, MAX_DEFERRED, err));
  runtime->is_sender_pool_started = true;
  if (pthread_create(&runtime->admission_thread, NULL, admission_thread, runtime) != 0)
    return clv_fail(err, CLV_EXHAUSTED, "the admission thread could not be started");
  runtime->has_admission_thread = true;
  for (unsigned i = 0; i < n; i++) {
    void *(*run)(void *) = i == 0 ? leader_thread : helper_thread;
    if (pthread_create(&runtime->threads[i], NULL, run, runtime) != 0)
      return clv_fail(err, CLV_EXHAUSTED, "queue thread %u of %u could not be started", i + 1, n);
    pthread_mutex_lock(&runtime->lock);
    runtime->n_threads++;
    pthread_mutex_unlock(&runtime->lock);
  }
  return CLV_OK;
}

const char *clv_rpc_library_version(char *ret_path, size_t len) {
  const char *(*function)(void) = grpc_version_string;
  const void *address;
  memcpy(&address, &function, sizeof address);
  clv_library_file_of(address, ret_path, len);
  return function();
}

clv_code clv_rpc_runtime_new(const clv_rpc_runtime_options *options, clv_rpc_runtime **ret_runtime,
                             clv_err *err) {
  unsigned n = options->n_queue_threads ? options->n_queue_threads : 2;
  if (n < 2 || n > 64) return clv_fail(err, CLV_INVALID, "queue_threads is %u, must be 2 to 64", n);
  if (options->spin_us > 1000)
    return clv_fail(err, CLV_INVALID, "spin_us is %u, must be at most 1000", options->spin_us);
  clv_rpc_runtime *runtime = NULL;
  CLV_TRY(clv_alloc(1, sizeof(*runtime), &runtime, err));
  gpr_set_log_function(forward_log);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  grpc_init();
  pthread_mutex_init(&runtime->lock, NULL);
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&runtime->wake_helpers, &attr);
  pthread_condattr_destroy(&attr);
  atomic_init(&runtime->spin_us, options->spin_us);
  make_queues(runtime);
  clv_code code = start_threads(runtime, n, err);
  if (code != CLV_OK) {
    clv_rpc_runtime_free(runtime);
    return code;
  }
  *ret_runtime = runtime;
  return CLV_OK;
}

/* Waits until all streams have ended. gRPC aborts if an operation is started on a queue that is
 * shut down. The streams were cancelled, and the queue threads still run and finish them. */
static void wait_for_streams(clv_rpc_runtime *runtime) {
  for (;;) {
    pthread_mutex_lock(&runtime->lock);
    bool have_all_ended = runtime->streams == NULL;
    pthread_mutex_unlock(&runtime->lock);
    if (have_all_ended) return;
    nanosleep(&(struct timespec){0, 500000}, NULL);
  }
}

void clv_rpc_runtime_free(clv_rpc_runtime *runtime) {
  if (!runtime) return;
  rpc_cancel_streams_of(runtime, NULL, CLV_CANCELLED, "this process is shutting down");
  if (runtime->n_threads > 0) wait_for_streams(runtime);
  if (runtime->is_sender_pool_started) rpc_pool_stop(&runtime->sender_pool);
  grpc_completion_queue_shutdown(runtime->admission_queue);
  grpc_completion_queue_shutdown(runtime->queue);
  if (runtime->has_admission_thread) pthread_join(runtime->admission_thread, NULL);
  for (unsigned i = 0; i < runtime->n_threads; i++) {
    /* threads[0], the leader, has ended, so the queue is empty: now stops the helpers, which are
     * all other threads */
    if (i == 1) {
      pthread_mutex_lock(&runtime->lock);
      runtime->is_stopping = true;
      pthread_cond_broadcast(&runtime->wake_helpers);
      pthread_mutex_unlock(&runtime->lock);
    }
    pthread_join(runtime->threads[i], NULL);
  }
  if (runtime->has_admission_thread) grpc_completion_queue_destroy(runtime->admission_queue);
  if (runtime->n_threads > 0) grpc_completion_queue_destroy(runtime->queue);
  grpc_shutdown();
  pthread_cond_destroy(&runtime->wake_helpers);
  pthread_mutex_destroy(&runtime->lock);
  free(runtime);
}

void clv_rpc_runtime_freep(clv_rpc_runtime **runtime) {
  clv_rpc_runtime_free(*runtime);
  *runtime = NULL;
}

void clv_rpc_runtime_set_spin(clv_rpc_runtime *runtime, unsigned spin_us) {
  atomic_store_explicit(&runtime->spin_us, CLV_MIN(spin_us, 1000u), memory_order_relaxed);
}

void clv_rpc_begin_computation(clv_rpc_runtime *runtime) {
  atomic_fetch_add_explicit(&runtime->n_computations, 1, memory_order_relaxed);
}

void clv_rpc_end_computation(clv_rpc_runtime *runtime) {
  atomic_fetch_sub_explicit(&runtime->n_computations, 1, memory_order_relaxed);
}

bool clv_rpc_stream_defer(clv_rpc_stream *stream, clv_rpc_job *job) {
  return rpc_pool_add_job(&stream->runtime->sender_pool, job);
}

/* ---- streams of this process ----------------------------------------------------------------- */

void rpc_runtime_add_stream(clv_rpc_runtime *runtime, clv_rpc_stream *stream) {
  pthread_mutex_lock(&runtime->lock);
  stream->next = runtime->streams;
  stream->prev_link = &runtime->streams;
  if (stream->next) stream->next->prev_link = &stream->next;
  runtime->streams = stream;
  pthread_mutex_unlock(&runtime->lock);
}

void rpc_runtime_remove_stream(clv_rpc_runtime *runtime, clv_rpc_stream *stream) {
  pthread_mutex_lock(&runtime->lock);
  *stream->prev_link = stream->next;
  if (stream->next) stream->next->prev_link = stream->prev_link;
  pthread_mutex_unlock(&runtime->lock);
}

/* Returns, with a reference, the next stream of `owner` (NULL: of any) that rpc_cancel_streams_of
 * has not visited. */
static clv_rpc_stream *take_next_to_cancel(clv_rpc_runtime *runtime, const void *owner) {
  pthread_mutex_lock(&runtime->lock);
  clv_rpc_stream *stream = runtime->streams;
  while (stream && (stream->is_visited_by_cancel || (owner && stream->owner != owner)))
    stream = stream->next;
  if (stream) {
    stream->is_visited_by_cancel = true;
    clv_rpc_stream_ref(stream);
  }
  pthread_mutex_unlock(&runtime->lock);
  return stream;
}

void rpc_cancel_streams_of(clv_rpc_runtime *runtime, const void *owner, clv_code code,
                           const char *text) {
  for (clv_rpc_stream *stream; (stream = take_next_to_cancel(runtime, owner)) != NULL;) {
    clv_rpc_stream_cancel(stream, code, text);
    clv_rpc_stream_unref(stream);
  }
}
