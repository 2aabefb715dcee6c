/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_int: what the files of the simulated device share. Nothing here is compiled for a sanitizer:
 * what the sanitizers are to know of order and memory they are told (order_int.h).
 *
 * All of it is under one lock. The host's thread that holds it runs what is drawn, on fibres of
 * which one runs at a time.
 */
#ifndef CLEAVE_TESTS_GPU_SIM_INT_H
#define CLEAVE_TESTS_GPU_SIM_INT_H

#include "tests/gpu/sim.h"
#include "tests/gpu/sim/order_int.h"

#define SIM_REGION ((size_t)1 << 38) /* addresses of device memory */

enum {
  SIM_MOST_THREADS = 256,
  SIM_MOST_SHARED = 48 << 10,
  SIM_MOST_AT_ONCE = 4, /* blocks of a launch */
  SIM_MOST_DEVICES = 8,
  SIM_WARP = 32,
};

typedef struct clv_cuda_stream sim_stream;
typedef struct sim_op sim_op;

/* ---- faults (report.c) ----------------------------------------------------------------------- */

typedef struct sim_lines {
  void *at[14];
  int n;
} sim_lines;

void sim_lines_here(sim_lines *ret);
void sim_lines_print(const sim_lines *lines);
/* Prints the text, where it is and the stack, and ends the process. */
void sim_fault(const char *format, ...) CLV_PRINTF(1, 2) __attribute__((noreturn));
void sim_handle_faults(void); /* of memory */

/* ---- memory (memory.c) ----------------------------------------------------------------------- */

/* Host time: an allocation lives from take to give. Device time: from the stream's `born` to its
 * `gone`, when its bytes become undefined. They are kept a while, and then released. */
typedef struct sim_block {
  char *p;
  size_t bytes;
  int device;
  bool given, gone, released; /* gone: the stream has come to where it was given back */
  size_t then;                /* the one that was gone next */
  sim_lines lines, given_at;
} sim_block;

/* Device memory may be touched from one to the other. */
void sim_memory_open(void);
void sim_memory_close(void);
extern char *sim_region; /* where device memory begins; before it is mapped, behind all addresses */
static inline bool sim_memory_is_device(const void *p) {
  return (uintptr_t)p - (uintptr_t)sim_region < SIM_REGION;
}

clv_code sim_memory_take(int device, size_t bytes, char **ret, clv_err *err);
void sim_memory_born(char *p);
void sim_memory_give(int device, char *p);
void sim_memory_gone(char *p);
size_t sim_memory_used(int device);
sim_block *sim_memory_find(const void *p); /* the allocation that p lies in or just behind */

/* Faults unless bytes from p on lie in what lives on the device; `what` says whose they are. */
void sim_memory_check(int device, const void *p, size_t bytes, const char *what);

/* Faults if it has gone before the copy that was asked for at these lines. */
void sim_memory_check_copy(const void *p, const sim_lines *asked, const char *what);

clv_code sim_host_take(size_t bytes, void **ret, clv_err *err);
void sim_host_give(void *p);
void sim_host_check(const void *p, size_t bytes, const char *what);

size_t sim_memory_leaks(void);

/* ---- loads and stores of kernels (checks.c) -------------------------------------------------- */

/* What bytes of device memory are from now on. */
void sim_checks_map(void);
void sim_checks_nothing(const void *p, size_t bytes);
void sim_checks_forget(const void *pages, size_t bytes); /* they are nothing, and will be */
void sim_checks_undefined(const void *p, size_t bytes);
void sim_checks_defined(const void *p, size_t bytes);
void sim_checks_copied(void *dst, const void *src, size_t bytes);

/* ---- launches (blocks.c) --------------------------------------------------------------------- */

typedef struct sim_launch sim_launch;
sim_launch *sim_launch_new(const clv_cuda_launch *l, const sim_lines *lines);
sim_launch *sim_launch_copy(const sim_launch *l);
void sim_launch_free(sim_launch *l);
void sim_launch_check(const sim_launch *l, int device); /* its pointers */
/* Some threads, up to their next barrier; true: it is done. *spare has fibres of launches before
 * this one in the stream. */
bool sim_launch_go_on(sim_launch *l, sim_fibres *spare);
/* A place that the thread may touch which runs on this thread of the host: its stack, the array of
 * its block that was touched last, and, to read, its arguments. */
typedef struct sim_place {
  char *low;
  size_t bytes; /* 0: there is none */
} sim_place;
extern _Thread_local sim_place sim_stack_here, sim_array_here, sim_arguments_here;
static inline bool sim_place_has(const sim_place *s, const void *p, size_t bytes) {
  size_t at = (uintptr_t)p - (uintptr_t)s->low;
  return at < s->bytes && bytes <= s->bytes - at;
}
/* Behind an array there is a byte for each of its own that is not 0 until that was written. */
static inline char *sim_unwritten(const sim_place *array, const void *p) {
  return array->low + array->bytes + ((const char *)p - array->low);
}
/* The thread that runs touches what is not device memory. False where it may not, or reads what was
 * not written; a library may always. */
bool sim_launch_touch(const void *p, size_t bytes, bool write);
bool sim_launch_is_shared(const void *p); /* in an array of the block */
void sim_launch_name_here(void);          /* prints which thread runs, if one does */

/* ---- what is drawn (draw.c) ------------------------------------------------------------------ */

void sim_draw_seed(uint64_t seed);
uint64_t sim_draw(uint64_t below);

/* ---- streams (streams.c) --------------------------------------------------------------------- */

/* A point of a stream that others wait for. */
typedef struct sim_mark {
  int refs;
  bool done;
  double ms;
} sim_mark;

/* Operands of an LSTM's calls. */
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

/* What is asked of a stream. */
struct sim_op {
  sim_op *next;
  bool (*run)(sim_stream *s, sim_op *op); /* true: it is done */
  sim_lines lines;
  sim_launch *launch;
  sim_mark *mark;
  void *dst;
  const void *src;
  size_t bytes;
  int byte;
  bool from_host, to_host;
  void (*call)(const sim_op *op); /* of a library, with what follows */
  char begins, ends;              /* places */
  union {
    clv_cuda_matmul_desc matmul;
    clv_cuda_conv_desc conv;
    clv_cuda_lstm_desc lstm;
  } desc;
  void *operand[SIM_OPERANDS];
  float beta;
  void *workspace;
  size_t workspace_bytes;
};

struct clv_cuda_stream {
  sim_stream *next, **at;
  int device;
  sim_order *order; /* the stream as a thread of its own */
  sim_fibres spare; /* of its launches that are done */
  sim_op *first, **last;
  bool captures;
  sim_op *captured, **last_captured; /* instead of being asked */
  sim_lines lines;
};

void sim_ask(sim_stream *s, const sim_op *op); /* a copy of it; draws what goes on meanwhile */
void sim_ask_again(sim_stream *s, const sim_op *op); /* one that was captured */
void sim_ops_free(sim_op *first);
void sim_go_on(uint64_t steps); /* at most */
void sim_finish_stream(sim_stream *s);
void sim_finish_mark(sim_mark *m);
sim_stream *sim_stream_new(int device);
void sim_stream_free(sim_stream *s);
bool sim_streams_use_host(const void *p, size_t bytes); /* a copy of that memory is still to come */
size_t sim_streams_leaks(void);
void sim_mark_unref(sim_mark *m);

bool sim_run_launch(sim_stream *s, sim_op *op);
bool sim_run_copy(sim_stream *s, sim_op *op);
bool sim_run_fill(sim_stream *s, sim_op *op);
bool sim_run_born(sim_stream *s, sim_op *op);
bool sim_run_gone(sim_stream *s, sim_op *op);
bool sim_run_record(sim_stream *s, sim_op *op);
bool sim_run_wait(sim_stream *s, sim_op *op);
bool sim_run_library(sim_stream *s, sim_op *op);

/* ---- libraries (tests/gpu/libraries; compiled for sanitizers as kernels are) ----------------- */

void sim_matmul_run(const sim_op *op);                            /* operands a, b, bias, d */
void sim_conv_run(const sim_op *op);                              /* operands x, w, y */
void sim_conv_counts(const clv_cuda_conv_desc *d, size_t ret[3]); /* elements of those */
void sim_lstm_run_forward(const sim_op *op);
void sim_lstm_run_backward_data(const sim_op *op);
void sim_lstm_run_backward_weight(const sim_op *op);
void sim_lstm_space(const clv_cuda_lstm_desc *d, clv_cuda_lstm_space *ret);

/* Factor i of those at p as it goes into a product, and how many bytes one has. */
double sim_factor(clv_cuda_math math, const void *p, size_t i);
size_t sim_factor_bytes(clv_cuda_math math);
uint16_t sim_bf16(float x); /* to nearest even */

/* ---- their loops (arithmetic.c, lstm.c) ------------------------------------------------------ */

/* sums += left right: m x n, m x k, k x n, one column after another */
typedef struct sim_product_of {
  int64_t m, n, k;
  const double *left, *right;
  double *sums;
} sim_product_of;

void sim_product(const sim_product_of *p);
void sim_convolution(const clv_cuda_conv_desc *d, double *const operand[3]); /* x, w, y */

/* weights and dweights as `space` has them; rows: of each layer, sample and step i, f, g, o, c, h;
 * dgates: of those i, f, g, o before their functions. dy [n, t, h] is used up. */
typedef struct sim_lstm {
  const clv_cuda_lstm_desc *d;
  const clv_cuda_lstm_space *space;
  double *weights, *dweights, *x, *dx, *dy, *rows, *dgates;
} sim_lstm;

void sim_lstm_forward(const sim_lstm *l); /* writes rows */
const double *sim_lstm_output(const sim_lstm *l, int64_t n, int64_t t);
void sim_lstm_backward_data(const sim_lstm *l); /* writes dgates and dx */
void sim_lstm_backward_weight(const sim_lstm *l);

/* ---- the whole ------------------------------------------------------------------------------- */

typedef struct sim_state {
  clv_sim_options o;
  clv_sim_counts counts;
  bool broken[SIM_MOST_DEVICES];   /* nothing more is done there */
  uint64_t takes, launches, calls; /* of the device that is to fail */
} sim_state;
extern sim_state sim;

#endif
