/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations that the files of the simulated device share. These files are not compiled for any
 * sanitizer. They report order and memory of the simulated operations to the sanitizers
 * (order_int.h).
 *
 * One lock guards the simulation. The host thread that holds the lock runs the operations that are
 * drawn, on fibres, one at a time.
 */
#ifndef CLEAVE_TESTS_GPU_SIM_INT_H
#define CLEAVE_TESTS_GPU_SIM_INT_H

#include "tests/gpu/sim.h"
#include "tests/gpu/sim/order_int.h"

#define SIM_REGION ((size_t)1 << 38) /* address space reserved for device memory, in bytes */

enum {
  SIM_MAX_THREADS = 256,
  SIM_MAX_SHARED_BYTES = 48 << 10,
  SIM_MAX_RUNNING_BLOCKS = 4, /* blocks of a launch that run at the same time */
  SIM_MAX_DEVICES = 8,
  SIM_WARP = 32,
};

typedef struct clv_cuda_stream sim_stream;
typedef struct sim_op sim_op;

/* ---- reports of faults (report.c) ------------------------------------------------------------ */

/* A call stack: return addresses, the innermost first. */
typedef struct sim_call_stack {
  void *at[14];
  int n;
} sim_call_stack;

void sim_call_stack_capture(sim_call_stack *ret);
void sim_call_stack_print(const sim_call_stack *call_stack);
/* Prints the text, the position and the stack, and exits. */
void sim_report_fault(const char *format, ...) CLV_PRINTF(1, 2) __attribute__((noreturn));
void sim_handle_faults(void); /* installs handlers of SIGSEGV and SIGBUS, which report a fault */

/* ---- memory of devices and of the host (memory.c) -------------------------------------------- */

/* An allocation of device memory. The host may pass the block to operations until the host frees
 * it. The device may use the block between the points of the stream at which it was allocated and
 * freed; then its bytes become undefined. The pages of a freed block are kept for a while, so that
 * late accesses are found. */
typedef struct sim_block {
  char *p;
  size_t bytes;
  int device;
  /* is_freed_on_stream: the stream has reached the point where the host freed the block */
  bool is_freed_by_host, is_freed_on_stream, are_pages_released;
  size_t next_freed_block; /* index of the block that was freed after this one */
  sim_call_stack call_stack, free_call_stack;
} sim_block;

/* sim_memory_allow_access makes device memory accessible to the calling host thread, and
 * sim_memory_forbid_access makes it inaccessible again; pairs of calls may be nested. */
void sim_memory_allow_access(void);
void sim_memory_forbid_access(void);
/* lowest address of device memory; until device memory is mapped, an address above all others */
extern char *sim_region;
static inline bool sim_memory_is_device(const void *p) {
  return (uintptr_t)p - (uintptr_t)sim_region < SIM_REGION;
}

clv_code sim_memory_allocate(int device, size_t bytes, char **ret, clv_err *err);
void sim_memory_on_alloc(char *p);
void sim_memory_free(int device, char *p);
void sim_memory_on_free(char *p);
size_t sim_memory_get_used_bytes(int device);
sim_block *sim_memory_find(const void *p); /* allocation that contains p or ends at p */

/* Ends the test with a report unless the bytes at p are in memory that is allocated for the device.
 * what: names the bytes in the report. */
void sim_memory_check(int device, const void *p, size_t bytes, const char *what);

/* Ends the test with a report if the memory at p was freed on its stream before the copy runs.
 * request_stack: call stack of the copy's request, for the report. */
void sim_memory_check_copy(const void *p, const sim_call_stack *request_stack, const char *what);

clv_code sim_host_allocate(size_t bytes, void **ret, clv_err *err);
void sim_host_free(void *p);
void sim_host_check(const void *p, size_t bytes, const char *what);

size_t sim_memory_count_leaks(void);

/* ---- loads and stores of kernels (checks.c) -------------------------------------------------- */

/* These functions record the state of bytes of device memory: not accessible, undefined or defined.
 * sim_checks_map_states reserves memory for the states. */
void sim_checks_map_states(void);
void sim_checks_set_inaccessible(const void *p, size_t bytes);
/* records that the pages were released and stay inaccessible */
void sim_checks_set_unmapped(const void *pages, size_t bytes);
void sim_checks_set_undefined(const void *p, size_t bytes);
void sim_checks_are_defined(const void *p, size_t bytes);
void sim_checks_copy_state(void *dst, const void *src, size_t bytes);

/* ---- launches of kernels (blocks.c) ---------------------------------------------------------- */

typedef struct sim_launch sim_launch;
sim_launch *sim_launch_new(const clv_cuda_launch *l, const sim_call_stack *call_stack);
sim_launch *sim_launch_copy(const sim_launch *l);
void sim_launch_free(sim_launch *l);
/* ends the test with a report if an argument points to memory that the device may not use */
void sim_launch_check(const sim_launch *l, int device);
/* Runs some threads of the launch up to their next barrier. Returns true when the launch is done.
 * *spare: fibres of the stream's earlier launches, for reuse. */
bool sim_launch_advance(sim_launch *l, sim_fibres *spare);
/* A range of memory that the running kernel thread may use besides device memory: its stack, the
 * shared array that it used last, or its arguments, which it may only read. */
typedef struct sim_place {
  char *lowest_address;
  size_t bytes; /* size of this memory in bytes; 0: the thread has no such memory */
} sim_place;
extern _Thread_local sim_place sim_thread_stack, sim_last_array, sim_launch_arguments;
static inline bool sim_place_contains(const sim_place *s, const void *p, size_t bytes) {
  size_t at = (uintptr_t)p - (uintptr_t)s->lowest_address;
  return at < s->bytes && bytes <= s->bytes - at;
}
/* Returns the address of the byte that tells whether the byte at p of a shared array has been
 * written (not 0: not written). These flags follow the array. */
static inline char *sim_get_unwritten_flag(const sim_place *array, const void *p) {
  return array->lowest_address + array->bytes + ((const char *)p - array->lowest_address);
}
/* Checks an access of the running kernel thread to memory other than device memory. Returns false
 * if the access is forbidden or reads a byte that was not written. Calls of a library may access
 * everything. */
bool sim_launch_may_touch(const void *p, size_t bytes, bool is_write);
bool sim_launch_is_shared(const void *p); /* true if p is in a shared array of the block */
/* prints the number of the kernel thread that runs, if any */
void sim_launch_print_thread(void);

/* ---- random numbers of the simulation (draw.c) ----------------------------------------------- */

void sim_draw_seed(uint64_t seed);
uint64_t sim_draw_below(uint64_t below);

/* ---- streams and their operations (streams.c) ------------------------------------------------ */

/* A point in a stream at which an event was recorded. Other streams can wait until it is done. */
typedef struct sim_mark {
  int n_references;
  bool is_done;
  double ms;
} sim_mark;

/* Indexes of the operands of cuDNN's LSTM calls. */
enum {
  SIM_LSTM_WEIGHTS,
  SIM_LSTM_DWEIGHTS,
  SIM_LSTM_X,
  SIM_LSTM_Y,
  SIM_LSTM_DX,
  SIM_LSTM_DY,
  SIM_LSTM_RESERVE,
  SIM_OPERANDS,
};

/* One operation that was enqueued on a stream. */
struct sim_op {
  sim_op *next;
  /* runs the operation, or a part of it; returns true when it is done */
  bool (*run)(sim_stream *s, sim_op *op);
  sim_call_stack call_stack;
  sim_launch *launch;
  sim_mark *mark;
  void *dst;
  const void *src;
  size_t bytes;
  int byte;
  bool copies_from_host, copies_to_host;
  void (*library_call)(
      const sim_op *op); /* function of the library that `run` calls; it reads the members below */
  /* the addresses of these marks identify the operation for sim_order_before and sim_order_after;
   * their values are unused */
  char begin_mark, end_mark;
  union {
    clv_cuda_matmul_desc matmul;
    clv_cuda_conv_desc conv;
    clv_cuda_lstm_desc lstm;
  } desc;
  void *operands[SIM_OPERANDS];
  float beta;
  void *workspace;
  size_t workspace_bytes;
};

struct clv_cuda_stream {
  sim_stream *next, **at;
  int device;
  sim_order *order;        /* the stream as a thread of thread sanitizer */
  sim_fibres spare_fibres; /* fibres (simulated threads) of finished launches, for reuse */
  /* queue of operations; last_op: the pointer that will point to the next operation enqueued */
  sim_op *first_op, **last_op;
  bool is_capturing;
  sim_op *first_captured, **last_captured; /* operations captured into a graph, not enqueued */
  sim_call_stack call_stack;
};

/* enqueues a copy of *op, then advances streams at random */
void sim_enqueue(sim_stream *s, const sim_op *op);
void sim_enqueue_again(sim_stream *s, const sim_op *op); /* enqueues a captured operation again */
void sim_ops_free(sim_op *first);
void sim_advance_streams(uint64_t steps); /* advances random streams by at most so many steps */
/* advances streams until all operations of s have run */
void sim_synchronize_stream(sim_stream *s);
/* advances streams until the operations before the mark in its stream have run */
void sim_synchronize_mark(sim_mark *m);
sim_stream *sim_stream_new(int device);
void sim_stream_free(sim_stream *s);
/* true if a copy from or to the host memory at p is still queued */
bool sim_streams_are_using_host(const void *p, size_t bytes);
size_t sim_streams_count_leaks(void);
void sim_mark_unref(sim_mark *m);

bool sim_run_launch(sim_stream *s, sim_op *op);
bool sim_run_copy(sim_stream *s, sim_op *op);
bool sim_run_fill(sim_stream *s, sim_op *op);
bool sim_run_alloc(sim_stream *s, sim_op *op);
bool sim_run_free(sim_stream *s, sim_op *op);
bool sim_run_record(sim_stream *s, sim_op *op);
bool sim_run_wait(sim_stream *s, sim_op *op);
bool sim_run_library(sim_stream *s, sim_op *op);

/* ---- simulated cuBLAS and cuDNN (tests/gpu/libraries, compiled as kernels are) --------------- */

void sim_matmul_run(const sim_op *op); /* d = a * b + bias */
/* computes y, the convolution of x with w, or the gradient of x or of w, as desc.pass requests */
void sim_conv_run(const sim_op *op);
/* stores the numbers of elements of x, w and y in ret */
void sim_conv_count_values(const clv_cuda_conv_desc *d, size_t ret[3]);
void sim_lstm_run_forward(const sim_op *op);
void sim_lstm_run_backward_data(const sim_op *op);
void sim_lstm_run_backward_weight(const sim_op *op);
void sim_lstm_compute_space(const clv_cuda_lstm_desc *d, clv_cuda_lstm_space *ret);

/* sim_get_factor returns value i of the array p, rounded as products in this arithmetic round their
 * factors. sim_get_factor_bytes returns the size of such a value in memory. */
double sim_get_factor(clv_cuda_math math, const void *p, size_t i);
size_t sim_get_factor_bytes(clv_cuda_math math);
uint16_t sim_round_to_bf16(float x); /* rounds to the nearest, ties to even */

/* ---- computations of the simulated cuBLAS and cuDNN (arithmetic.c, lstm.c) ------------------- */

/* product += left_factor * right_factor, all column-major. product is [m, n], left_factor [m, k],
 * right_factor [k, n]. */
typedef struct sim_product {
  int64_t m, n, k;
  const double *left_factor, *right_factor;
  double *product;
} sim_product;

void sim_compute_product(const sim_product *p);
void sim_compute_convolution(const clv_cuda_conv_desc *d,
                             double *const operand[3]); /* arrays of x, w and y, in this order */

/* Arguments of the LSTM loops. weights, weight_gradients: laid out by `space`. row_values: gates i,
 * f, g, o, cell state c and hidden state h of each layer, sample and step. gate_gradients:
 * gradients of i, f, g, o before their activations. dy [n, t, h] is overwritten. */
typedef struct sim_lstm {
  const clv_cuda_lstm_desc *d;
  const clv_cuda_lstm_space *space;
  double *weights, *weight_gradients, *x, *dx, *dy, *row_values, *gate_gradients;
} sim_lstm;

void sim_lstm_forward(const sim_lstm *l); /* computes the forward; fills row_values */
const double *sim_lstm_write_output(const sim_lstm *l, int64_t n, int64_t t);
/* computes the gradients of the gates and of x; fills gate_gradients and dx */
void sim_lstm_backward_data(const sim_lstm *l);
void sim_lstm_backward_weight(const sim_lstm *l);

/* ---- options, counts and failures of the simulation ------------------------------------------ */

typedef struct sim_state {
  clv_sim_options o;
  clv_sim_counts counts;
  bool is_broken[SIM_MAX_DEVICES]; /* [device] true after a failure: all later calls for it fail */
  /* numbers of allocations, launches and calls; a planned failure happens at a given number */
  uint64_t n_allocations, n_launches, n_calls;
} sim_state;
extern sim_state sim;

#endif
