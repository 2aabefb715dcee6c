/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that no signal handler runs on a thread while oneDNN computes on it: oneDNN's products move
 * the stack pointer into the heap, where the frame of a handler would overwrite what is below.
 */
#include "tests/unit/cpu/cpu_test.h"

#include <dnnl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

enum { TEAM = 3, MIN_SIGNALS = 50, PERIOD_US = 200 };
static const uint64_t LIMIT_NS = 10000000000;

extern void GOMP_parallel(void (*fn)(void *), void *arg, unsigned threads, unsigned flags);
extern int omp_get_thread_num(void);

/* ---- blocked signals when oneDNN is called --------------------------------------------------- */

static int n_calls;               /* number of calls of oneDNN */
static int n_interruptible_calls; /* calls in which a signal could interrupt the thread */

static bool is_blocked(int signal) {
  sigset_t now;
  pthread_sigmask(SIG_BLOCK, NULL, &now);
  return sigismember(&now, signal);
}

static void count_call(void) {
  n_calls++;
  n_interruptible_calls +=
      !is_blocked(SIGINT) || !is_blocked(SIGTERM) || !is_blocked(SIGHUP) || !is_blocked(SIGPROF);
}

dnnl_status_t __real_dnnl_sgemm(char, char, dnnl_dim_t, dnnl_dim_t, dnnl_dim_t, float,
                                const float *, dnnl_dim_t, const float *, dnnl_dim_t, float,
                                float *, dnnl_dim_t);
dnnl_status_t __wrap_dnnl_sgemm(char at, char bt, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k,
                                float alpha, const float *a, dnnl_dim_t lda, const float *b,
                                dnnl_dim_t ldb, float beta, float *c, dnnl_dim_t ldc);
dnnl_status_t __wrap_dnnl_sgemm(char at, char bt, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k,
                                float alpha, const float *a, dnnl_dim_t lda, const float *b,
                                dnnl_dim_t ldb, float beta, float *c, dnnl_dim_t ldc) {
  count_call();
  return __real_dnnl_sgemm(at, bt, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

dnnl_status_t __real_dnnl_primitive_execute(const_dnnl_primitive_t, dnnl_stream_t, int,
                                            const dnnl_exec_arg_t *);
dnnl_status_t __wrap_dnnl_primitive_execute(const_dnnl_primitive_t p, dnnl_stream_t s, int n,
                                            const dnnl_exec_arg_t *args);
dnnl_status_t __wrap_dnnl_primitive_execute(const_dnnl_primitive_t p, dnnl_stream_t s, int n,
                                            const dnnl_exec_arg_t *args) {
  count_call();
  return __real_dnnl_primitive_execute(p, s, n, args);
}

static void check_signals_are_blocked_while_running(const clv_node_desc *d) {
  node n;
  n_calls = n_interruptible_calls = 0;
  prepare_node(&n, d);
  run_node(&n);
  free_node(&n);
  assert_true(n_calls > 0);
  assert_int_equal(n_interruptible_calls, 0);
  assert_false(is_blocked(SIGINT));
}

static void signals_are_blocked_while_one_thread_runs_onednn(void **state) {
  (void)state;
  clv_node_desc linear = make_linear_desc(64, 784, 16),
                conv = make_conv_desc(2, 7, 6, 6, 9, 3, 1, 0, 1);
  check_signals_are_blocked_while_running(&linear);
  check_signals_are_blocked_while_running(&conv);
}

/* ---- blocked signals in the threads of an OpenMP team ---------------------------------------- */

static void run_program_part(void *unused) { (void)unused; }

static void record_blocked_in_thread(void *arg) {
  bool *is_blocked_in = arg;
  is_blocked_in[omp_get_thread_num()] = is_blocked(SIGINT) && !is_blocked(SIGSEGV);
}

static void run_node_once(const clv_node_desc *d) {
  node n;
  prepare_node(&n, d);
  run_node(&n);
  free_node(&n);
}

/* Runs on a new thread, because each thread has its own OpenMP team. */
static void *run_linear_after_program(void *is_blocked_in) {
  clv_node_desc d = make_linear_desc(64, 784, 16);
  d.threads = TEAM;
  GOMP_parallel(run_program_part, NULL, TEAM, 0);
  run_node_once(&d);
  GOMP_parallel(record_blocked_in_thread, is_blocked_in, TEAM, 0);
  return NULL;
}

static void *run_loops_in_thread(void *is_blocked_in) {
  clv_node_desc d = make_image_desc(CLV_OP_DROPOUT, 16, 16, 32, 32);
  d.threads = TEAM;
  run_node_once(&d);
  GOMP_parallel(record_blocked_in_thread, is_blocked_in, TEAM, 0);
  return NULL;
}

static void signals_stay_blocked_in_other_team_threads(void **state) {
  static void *(*const thread_functions[])(void *) = {run_linear_after_program,
                                                      run_loops_in_thread};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(thread_functions); i++) {
    bool is_blocked_in[TEAM] = {false};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, thread_functions[i], is_blocked_in), 0);
    pthread_join(thread, NULL);
    assert_false(is_blocked_in[0]); /* the calling thread accepts signals again */
    for (int k = 1; k < TEAM; k++) assert_true(is_blocked_in[k]);
  }
}

/* ---- a timer whose signal interrupts kernels ------------------------------------------------- */

static char *stack_begin, *stack_end; /* stack of the main thread */
static volatile sig_atomic_t n_handled, n_outside_main_stack;

static void on_alarm(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)info;
  n_handled++;
#ifdef __x86_64__
  char *sp = (char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RSP];
  n_outside_main_stack += sp < stack_begin || sp >= stack_end;
#else
  (void)context;
#endif
}

static void begin_alarms(void *stack) {
  pthread_attr_t attr;
  void *at;
  size_t size;
  pthread_getattr_np(pthread_self(), &attr);
  pthread_attr_getstack(&attr, &at, &size);
  pthread_attr_destroy(&attr);
  stack_begin = at;
  stack_end = stack_begin + size;
  /* the handler runs on a separate stack, so that it overwrites nothing on the stack of the
   * interrupted thread */
  sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = 1 << 16}, NULL);
  struct sigaction act = {.sa_sigaction = on_alarm,
                          .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
  sigaction(SIGALRM, &act, NULL);
}

static void set_alarm_interval(suseconds_t interval_us) {
  setitimer(ITIMER_REAL, &(struct itimerval){{.tv_usec = interval_us}, {.tv_usec = interval_us}},
            NULL);
}

static void signal_handler_runs_on_the_thread_stack(void **state) {
  static char stack[1 << 16];
  (void)state;
  clv_node_desc d = make_linear_desc(64, 784, 16);
  node n;
  prepare_node(&n, &d);
  begin_alarms(stack);
  set_alarm_interval(PERIOD_US);
  for (uint64_t end = clv_now_ns() + LIMIT_NS; n_handled < MIN_SIGNALS && clv_now_ns() < end;)
    run_node(&n);
  set_alarm_interval(0);
  sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
  free_node(&n);
  assert_true(n_handled >= MIN_SIGNALS);
  assert_int_equal(n_outside_main_stack, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(signals_are_blocked_while_one_thread_runs_onednn),
      cmocka_unit_test(signals_stay_blocked_in_other_team_threads),
      cmocka_unit_test(signal_handler_runs_on_the_thread_stack),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
