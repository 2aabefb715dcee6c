/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs one case on one backend. Values go in and come out as row-major doubles, whatever the
 * kernel's type and layouts.
 *
 * Every buffer that a kernel must fill is filled with NaN before, and is exactly as large as the
 * kernel asked for, so that an unwritten or overrun value shows. backward gets only the values that
 * the kernel names in `saved_flags`, and runs after another forward on the same kernel, as when
 * several micro-batches are in flight.
 */
#ifndef CLEAVE_OPS_RUN_INT_H
#define CLEAVE_OPS_RUN_INT_H

#include "tests/ops/cases_int.h"

#include <math.h>

/* Indexes of the tensors in `values`. Parameters are in the order of their slots. */
enum {
  V_IN = 0,
  V_PARAM = V_IN + CLV_MAX_IN,
  /* gradient of the output; what follows it are results of the run */
  V_DOUT = V_PARAM + CLV_MAX_PARAMS,
  V_OUT,
  V_DIN,
  V_DPARAM = V_DIN + CLV_MAX_IN,
  V_STATISTICS_AFTER = V_DPARAM + CLV_MAX_PARAMS, /* running statistics after a training step */
  V_COUNT = V_STATISTICS_AFTER + CLV_MAX_PARAMS,
  V_FIRST_RESULT = V_OUT, /* tensors from here on are results; tensors before are given */
};

/* Values of one run. v[i], n[i]: tensor i and its number of values; n[i] is 0 if the case has no
 * such tensor. */
typedef struct values {
  double *v[V_COUNT];
  size_t n[V_COUNT];
} values;

/* Writes a tensor's name to buf: "in0", "weight", "dout", "out", "din0", "dweight",
 * "mean_after". */
static inline const char *write_value_name(const clv_node_desc *d, int v, char buf[40]) {
  if (v == V_DOUT || v == V_OUT) return v == V_OUT ? "out" : "dout";
  if (v < V_PARAM)
    snprintf(buf, 40, "in%d", v - V_IN);
  else if (v < V_DOUT)
    snprintf(buf, 40, "%s", get_slot(d, v - V_PARAM).suffix);
  else if (v < V_DPARAM)
    snprintf(buf, 40, "din%d", v - V_DIN);
  else if (v < V_STATISTICS_AFTER)
    snprintf(buf, 40, "d%s", get_slot(d, v - V_DPARAM).suffix);
  else
    snprintf(buf, 40, "%s_after", get_slot(d, v - V_STATISTICS_AFTER).suffix);
  return buf;
}

/* Returns the shape of a tensor of the case. */
static inline clv_shape get_value_shape(const clv_node_desc *d, int v) {
  if (v == V_DOUT || v == V_OUT) return d->out;
  if (v < V_PARAM) return d->in[v - V_IN];
  if (v < V_DOUT) return d->param[v - V_PARAM];
  if (v < V_DPARAM) return d->in[v - V_DIN];
  return v < V_STATISTICS_AFTER ? d->param[v - V_DPARAM] : d->param[v - V_STATISTICS_AFTER];
}

static const clv_rng_key dropout_key = {
    .seed = 0x123456789ABCDEF0u, .step = 0x300000005u, .micro_batch = 2, .layer = 5 << 4};

enum { INITIAL_COUNTER = 41 };

static inline void exit_with_message(const char *what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static inline void *allocate_host(size_t bytes) {
  void *p = aligned_alloc(64, clv_align_up(bytes ? bytes : 1, 64));
  if (!p) exit_with_message("out of memory");
  memset(p, 0xFF, bytes); /* bytes 0xFF are NaN in every float type */
  return p;
}

static inline size_t count_elements(const clv_shape *s) { return clv_layout_numel(s, 1); }

static inline void allocate_values(values *s, const clv_node_desc *d) {
  clv_slot slot[CLV_MAX_PARAMS];
  memset(s, 0, sizeof *s);
  for (int i = 0; i < d->n_in; i++) {
    s->n[V_IN + i] = count_elements(&d->in[i]);
    s->n[V_DIN + i] = d->need_dx[i] ? s->n[V_IN + i] : 0;
  }
  int n_slots = get_slots(d, slot);
  for (int i = 0; i < n_slots; i++) {
    if (slot[i].is_i64) continue; /* an integer slot is a counter, not a tensor of values */
    s->n[V_PARAM + i] = count_elements(&d->param[i]);
    s->n[V_DPARAM + i] = d->need_dw && !slot[i].is_buffer ? s->n[V_PARAM + i] : 0;
    s->n[V_STATISTICS_AFTER + i] = slot[i].is_buffer ? s->n[V_PARAM + i] : 0;
  }
  s->n[V_DOUT] = s->n[V_OUT] = count_elements(&d->out);
  for (int i = 0; i < V_COUNT; i++) s->v[i] = allocate_host(s->n[i] * sizeof(double));
}

static inline void free_values(values *s) {
  for (int i = 0; i < V_COUNT; i++) free(s->v[i]);
}

static inline void copy_given_values(values *dst, const values *src) {
  for (int i = 0; i < V_FIRST_RESULT; i++)
    if (src->n[i]) memcpy(dst->v[i], src->v[i], src->n[i] * sizeof(double));
}

/* ---- one execution of a case ----------------------------------------------------------------- */

typedef struct run_options {
  const clv_backend *backend;
  clv_dtype dtype;
  int offered_block; /* channel block that is offered to the kernel for inputs of rank 4 */
  int n_threads;
  bool is_tf32, is_bf16; /* flags tf32 and bf16 of clv_node_desc */
  bool has_bf16_weight;  /* flag bf16_weight of clv_node_desc; a bf16 weight gets no gradient */
  bool is_in_place;      /* output and input share memory where the kernel supports it */
  bool has_accumulation; /* parameter gradients are added to a buffer of ones */
  /* returns how often the host has waited for its device; NULL: waits are not checked */
  uint64_t (*count_waits)(void);
} run_options;

typedef struct execution {
  const run_options *o;
  clv_node_desc d;
  clv_kernel *k;
  clv_kernel_args a;
  void *row_major_values[V_COUNT]; /* row-major values in the kernel's type */
} execution;

static inline void must(clv_code code, const clv_err *err) {
  if (code != CLV_OK) exit_with_message(err->text);
}

typedef clv_code kernel_fn(clv_kernel *k, const clv_kernel_args *a, clv_err *err);

/* Runs a function of the kernel. Fails if the function allocates memory or waits for a device: a
 * kernel may allocate only when it is prepared. */
static inline void run_kernel(const execution *e, kernel_fn *f, const clv_kernel_args *a) {
  clv_err err;
  uint64_t allocs_before = clv_alloc_count(),
           waits_before = e->o->count_waits ? e->o->count_waits() : 0;
  must(f(e->k, a, &err), &err);
  if (clv_alloc_count() != allocs_before) exit_with_message("a kernel took memory while it ran");
  if (e->o->count_waits && e->o->count_waits() != waits_before)
    exit_with_message("a kernel waited, or took memory of its device");
}

/* ---- memory of the backend: the host's, or that of a device ---------------------------------- */

/* Copies host memory from allocate_host() to memory of the backend, and frees the host memory. */
static inline void *to_device_memory(const execution *e, void *host, size_t bytes) {
  const clv_backend *b = e->o->backend;
  clv_err err;
  void *p;
  if (!b->memory) return host;
  must(b->memory->allocate(b, bytes, &p, &err), &err);
  must(b->memory->put(b, p, host, bytes, &err), &err);
  free(host);
  return p;
}

static inline void *new_backend_memory(const execution *e, size_t bytes) {
  return to_device_memory(e, allocate_host(bytes), bytes);
}

/* Returns the content of backend memory in host memory from allocate_host(). */
static inline void *to_host_memory(const execution *e, const void *p, size_t bytes) {
  const clv_backend *b = e->o->backend;
  clv_err err;
  void *host = allocate_host(bytes);
  if (b->memory)
    must(clv_backend_get(b, host, p, bytes, &err), &err);
  else
    memcpy(host, p, bytes);
  return host;
}

static inline void free_device_memory(const execution *e, const void *p) {
  const clv_backend *b = e->o->backend;
  if (b->memory)
    b->memory->free(b, (void *)(uintptr_t)p);
  else
    free((void *)(uintptr_t)p);
}

/* Waits for the backend. A device reports only here that a kernel refused its values, such as a
 * label out of range. */
static inline void wait_for_device(const execution *e) {
  const clv_backend *b = e->o->backend;
  int64_t layer;
  clv_err err;
  if (b->memory) must(b->memory->finish(b, &layer, &err), &err);
}

/* ---- converting values between types and layouts --------------------------------------------- */

/* Returns a row-major copy of v in the kernel's type `dtype`. */
static inline void *to_kernel_type(clv_dtype dtype, const double *v, size_t n) {
  void *p = allocate_host(n * clv_dtype_size(dtype));
  for (size_t i = 0; i < n; i++) {
    if (dtype == CLV_F32)
      ((float *)p)[i] = (float)v[i];
    else if (dtype == CLV_F64)
      ((double *)p)[i] = v[i];
    else
      ((int64_t *)p)[i] = (int64_t)v[i];
  }
  return p;
}

static inline void to_doubles(clv_dtype dtype, const void *p, double *v, size_t n) {
  for (size_t i = 0; i < n; i++)
    v[i] = dtype == CLV_F32 ? ((const float *)p)[i] : ((const double *)p)[i];
}

static inline uint16_t round_to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
static inline float widen_bf16(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Bytes of one value in the kernel's type. */
static inline size_t get_value_bytes(const execution *e, int layout) {
  return clv_layout_is_bf16(layout) ? sizeof(uint16_t) : clv_dtype_size(e->o->dtype);
}

/* True for bf16 with channels last. Only devices use this layout, and reorder values into it. */
static inline bool is_bf16_channels_last(int layout) {
  return clv_layout_is_channels_last(layout) && clv_layout_is_bf16(layout);
}

/* Returns the position of value i of the row-major order in channels-last order. */
static inline size_t get_channels_last_index(const clv_shape *s, size_t i) {
  size_t c = (size_t)s->dim[1], n_pixels = (size_t)(s->dim[2] * s->dim[3]);
  return (i / n_pixels / c * n_pixels + i % n_pixels) * c + i / n_pixels % c;
}

/* Converts row-major f32 to channels-last bf16, or back. */
static inline void to_channels_last(const clv_shape *s, const float *row, uint16_t *channels_last) {
  for (size_t i = 0; i < count_elements(s); i++)
    channels_last[get_channels_last_index(s, i)] = round_to_bf16(row[i]);
}
static inline void from_channels_last(const clv_shape *s, const uint16_t *channels_last,
                                      float *row) {
  for (size_t i = 0; i < count_elements(s); i++)
    row[i] = widen_bf16(channels_last[get_channels_last_index(s, i)]);
}

/* Allocates an activation in a layout, and fills it from the row-major values `row`; NULL: with
 * NaN. */
static inline void *to_layout(const execution *e, const clv_shape *shape, const void *row,
                              int block) {
  size_t bytes = clv_layout_numel(shape, block) * get_value_bytes(e, block);
  void *p = allocate_host(bytes);
  clv_err err;
  if (row && block == 1)
    memcpy(p, row, bytes);
  else if (row && is_bf16_channels_last(block))
    to_channels_last(shape, row, p);
  else if (row)
    must(e->o->backend->reorder(e->o->backend, shape, e->o->dtype, row, 1, p, block, &err), &err);
  return to_device_memory(e, p, bytes);
}

static inline void channels_last_to_doubles(const execution *e, const clv_shape *shape,
                                            const void *p, double *v) {
  size_t n = count_elements(shape);
  uint16_t *channels_last = to_host_memory(e, p, n * sizeof *channels_last);
  float *row = allocate_host(n * sizeof *row);
  from_channels_last(shape, channels_last, row);
  to_doubles(CLV_F32, row, v, n);
  free(channels_last);
  free(row);
}

/* Converts an activation to row-major doubles. Fails unless the channel padding is zero. */
static inline void layout_to_doubles(const execution *e, const clv_shape *shape, const void *p,
                                     int block, double *v) {
  if (is_bf16_channels_last(block)) {
    channels_last_to_doubles(e, shape, p, v);
    return;
  }
  size_t n = count_elements(shape), size = clv_dtype_size(e->o->dtype);
  size_t n_padded = clv_layout_numel(shape, block);
  void *row = block == 1 ? to_host_memory(e, p, n * size) : allocate_host(n * size);
  clv_err err;
  if (block != 1) {
    must(e->o->backend->reorder(e->o->backend, shape, e->o->dtype, p, block, row, 1, &err), &err);
    void *padded_copy = to_layout(e, shape, row, block);
    double *a = allocate_host(n_padded * sizeof *a), *b = allocate_host(n_padded * sizeof *b);
    to_doubles(e->o->dtype, p, a, n_padded);
    to_doubles(e->o->dtype, padded_copy, b, n_padded);
    for (size_t i = 0; i < n_padded; i++)
      if (a[i] != b[i] && !(isnan(a[i]) && isnan(b[i])))
        exit_with_message("the channel padding of a blocked result is not zero");
    free(padded_copy);
    free(a);
    free(b);
  }
  to_doubles(e->o->dtype, row, v, n);
  free(row);
}

/* Converts n values of the kernel's type to doubles. */
static inline void read_values(const execution *e, const void *p, double *v, size_t n) {
  if (!n) return;
  void *host = to_host_memory(e, p, n * clv_dtype_size(e->o->dtype));
  to_doubles(e->o->dtype, host, v, n);
  free(host);
}

static inline void *round_all_to_bf16(const double *v, size_t n) {
  uint16_t *p = allocate_host(n * sizeof *p);
  for (size_t i = 0; i < n; i++) p[i] = round_to_bf16((float)v[i]);
  return p;
}

/* Allocates the parameters and copies the case's values. Every counter starts at
 * INITIAL_COUNTER. */
static inline void make_parameters(execution *e, const values *s) {
  size_t size = clv_dtype_size(e->o->dtype);
  for (int i = 0; i < e->d.n_params; i++) {
    size_t n = s->n[V_PARAM + i];
    double counter = INITIAL_COUNTER;
    if (e->d.bf16_weight && i == CLV_SLOT_WEIGHT)
      e->a.param[i] =
          to_device_memory(e, round_all_to_bf16(s->v[V_PARAM + i], n), n * sizeof(uint16_t));
    else
      e->a.param[i] =
          n ? to_device_memory(e, to_kernel_type(e->o->dtype, s->v[V_PARAM + i], n), n * size)
            : to_device_memory(e, to_kernel_type(CLV_I64, &counter, 1), sizeof(int64_t));
  }
}

static inline void free_parameters(execution *e) {
  for (int i = 0; i < e->d.n_params; i++) free_device_memory(e, e->a.param[i]);
}

/* Runs forward on in0 * scale + shift with new buffers, and stores the buffers in *a. */
static inline void run_forward(execution *e, const values *s, double scale, double shift,
                               clv_kernel_args *a) {
  clv_kernel *k = e->k;
  double *x = allocate_host(s->n[V_IN] * sizeof *x);
  for (size_t i = 0; i < s->n[V_IN]; i++) x[i] = s->v[V_IN][i] * scale + shift;
  for (int i = 0; i < e->d.n_in; i++) {
    void *row = to_kernel_type(e->d.in_dtype[i], i ? s->v[V_IN + i] : x, s->n[V_IN + i]);
    bool is_integer = e->d.in_dtype[i] == CLV_I64;
    a->in[i] = is_integer ? to_device_memory(e, row, s->n[V_IN + i] * sizeof(int64_t))
                          : to_layout(e, &e->d.in[i], row, k->in_block[i]);
    if (!is_integer) free(row);
  }
  free(x);
  a->saved = new_backend_memory(e, k->saved_bytes);
  a->scratch = new_backend_memory(e, k->scratch_bytes);
  a->key = dropout_key;
  bool is_in_place = e->o->is_in_place && k->in_place;
  a->out = is_in_place ? (void *)(uintptr_t)a->in[0] : to_layout(e, &e->d.out, NULL, k->out_block);
  run_kernel(e, k->forward, a);
  free_device_memory(e, a->scratch);
  if (is_in_place) a->in[0] = NULL;
}

static inline void free_forward_buffers(const execution *e, const clv_kernel_args *a) {
  for (int i = 0; i < CLV_MAX_IN; i++) free_device_memory(e, a->in[i]);
  free_device_memory(e, a->out);
  free_device_memory(e, a->saved);
}

static inline void make_backward_buffers(execution *e, const values *s, clv_kernel_args *a) {
  clv_kernel *k = e->k;
  void *row = to_kernel_type(e->o->dtype, s->v[V_DOUT], s->n[V_DOUT]);
  a->dout = to_layout(e, &e->d.out, row, k->out_block);
  free(row);
  for (int i = 0; i < e->d.n_in; i++)
    if (e->d.need_dx[i]) a->din[i] = to_layout(e, &e->d.in[i], NULL, k->in_block[i]);
  for (int i = 0; i < CLV_MAX_PARAMS; i++) {
    size_t n = s->n[V_DPARAM + i];
    if (!n) continue;
    double *ones = allocate_host(n * sizeof *ones);
    for (size_t j = 0; j < n && e->o->has_accumulation; j++) ones[j] = 1;
    a->dparam[i] =
        to_device_memory(e, to_kernel_type(e->o->dtype, ones, n), n * clv_dtype_size(e->o->dtype));
    free(ones);
  }
  a->accumulate = e->o->has_accumulation;
}

static inline bool needs_input_gradient(const clv_node_desc *d) {
  bool needs_any = false;
  for (int i = 0; i < d->n_in; i++) needs_any |= d->need_dx[i];
  return needs_any;
}

/* Runs backward with only the values that `saved_flags` names. If the case needs no gradient of an
 * input, computes the gradients of the parameters alone, as a plan does. */
static inline void run_backward(execution *e, const clv_kernel_args *from, values *s) {
  clv_kernel *k = e->k;
  clv_kernel_args a = *from;
  for (int i = 0; i < e->d.n_in; i++)
    if (!(k->saved_flags & clv_save_flag_of_input(i))) a.in[i] = NULL;
  if (!(k->saved_flags & CLV_SAVE_OUT)) a.out = NULL;
  make_backward_buffers(e, s, &a);
  a.scratch = new_backend_memory(e, k->scratch_bytes);
  bool computes_input_gradient = needs_input_gradient(&e->d) || k->fused_grads;
  if (k->backward_input && computes_input_gradient) run_kernel(e, k->backward_input, &a);
  if (e->d.need_dw && !k->fused_grads) {
    free_device_memory(e, a.scratch);
    a.scratch = new_backend_memory(e, k->scratch_bytes);
    run_kernel(e, k->backward_weight, &a);
  }
  for (int i = 0; i < e->d.n_in; i++)
    if (e->d.need_dx[i])
      layout_to_doubles(e, &e->d.in[i], a.din[i], k->in_block[i], s->v[V_DIN + i]);
  for (int i = 0; i < CLV_MAX_PARAMS; i++)
    read_values(e, a.dparam[i], s->v[V_DPARAM + i], s->n[V_DPARAM + i]);
  for (int i = 0; i < CLV_MAX_IN; i++) free_device_memory(e, a.din[i]);
  for (int i = 0; i < CLV_MAX_PARAMS; i++) free_device_memory(e, a.dparam[i]);
  free_device_memory(e, a.dout);
  free_device_memory(e, a.scratch);
}

static inline void read_statistics(const execution *e, values *s) {
  for (int i = 0; i < CLV_MAX_PARAMS; i++)
    read_values(e, e->a.param[i], s->v[V_STATISTICS_AFTER + i], s->n[V_STATISTICS_AFTER + i]);
  for (int i = 0; i < e->d.n_params; i++) {
    if (s->n[V_PARAM + i]) continue;
    int64_t *counter = to_host_memory(e, e->a.param[i], sizeof *counter);
    if (*counter != INITIAL_COUNTER + e->d.training)
      exit_with_message(
          "num_batches_tracked is not one higher after training, or moved outside it");
    free(counter);
  }
}

/* Runs case d on the given values of *s and stores the results there. Returns false if the backend
 * has no kernel for the op. *ret_impl receives the kernel's name; may be NULL. */
static inline bool run_case(const run_options *o, const clv_node_desc *d, values *s,
                            const char **ret_impl) {
  execution e = {.o = o, .d = *d};
  clv_err err;
  e.d.dtype = o->dtype;
  e.d.tf32 = o->is_tf32;
  e.d.bf16 = o->is_bf16;
  e.d.bf16_weight = o->has_bf16_weight;
  if (o->n_threads) e.d.threads = o->n_threads;
  for (int i = 0; i < e.d.n_in; i++) {
    e.d.in_dtype[i] = is_integer_input(e.d.op, i) ? CLV_I64 : o->dtype;
    e.d.offered_block[i] = e.d.in[i].rank == 4 && o->offered_block ? o->offered_block : 1;
  }
  clv_code code = o->backend->prepare(o->backend, &e.d, &e.k, &err);
  if (code == CLV_UNIMPLEMENTED) return false;
  must(code, &err);
  if (ret_impl) *ret_impl = e.k->impl;
  o->backend->set_threads(e.d.threads);
  make_parameters(&e, s);
  e.a.cache = new_backend_memory(&e, e.k->cache_bytes);
  e.a.scratch = new_backend_memory(&e, e.k->scratch_bytes);
  e.a.refresh_for = CLV_FOR_FORWARD | CLV_FOR_BACKWARD;
  if (e.k->refresh) run_kernel(&e, e.k->refresh, &e.a);
  free_device_memory(&e, e.a.scratch);
  clv_kernel_args first_args = e.a, second_args = e.a;
  run_forward(&e, s, 1, 0, &first_args);
  read_statistics(&e, s);
  layout_to_doubles(&e, &e.d.out, first_args.out, e.k->out_block, s->v[V_OUT]);
  run_forward(&e, s, 0.5, 0.25, &second_args);
  run_backward(&e, &first_args, s);
  wait_for_device(&e);
  free_forward_buffers(&e, &first_args);
  free_forward_buffers(&e, &second_args);
  free_parameters(&e);
  /* a bf16 weight has no gradient to compare */
  if (o->has_bf16_weight) s->n[V_DPARAM + CLV_SLOT_WEIGHT] = 0;
  free_device_memory(&e, e.a.cache);
  e.k->free(e.k);
  return true;
}

/* ---- comparing results and drawing given values ---------------------------------------------- */

/* Returns ||a - b|| / ||b||, or ||a|| if b is 0; infinity unless NaN and infinities are at the
 * same positions in a and b. */
static inline double compute_distance(const double *a, const double *b, size_t n) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < n; i++) {
    if (isnan(b[i]) && isnan(a[i])) continue;
    if (isinf(b[i]) && a[i] == b[i]) continue;
    if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

static inline void draw_normal(double *v, size_t n, uint32_t stream, float mean, float std) {
  float *f = allocate_host(n * sizeof *f);
  clv_rng_key key = {.seed = 11, .layer = stream};
  clv_rng_normal(&key, mean, std, f, n);
  for (size_t i = 0; i < n; i++) v[i] = f[i];
  free(f);
}

static inline void draw_uniform(double *v, size_t n, uint32_t stream, float low, float high) {
  float *f = allocate_host(n * sizeof *f);
  clv_rng_key key = {.seed = 12, .layer = stream};
  clv_rng_uniform(&key, low, high, f, n);
  for (size_t i = 0; i < n; i++) v[i] = f[i];
  free(f);
}

static inline void draw_input(const op_case *c, uint32_t stream, double *v, size_t n) {
  if (c->input_fill == FILL_BIG)
    draw_uniform(v, n, stream, -90, 90);
  else if (c->input_fill == FILL_SHIFTED)
    draw_normal(v, n, stream, 1000, 3);
  else if (c->input_fill == FILL_UNIT)
    draw_uniform(v, n, stream, 0.02f, 0.98f);
  else if (c->input_fill == FILL_EDGE)
    draw_uniform(v, n, stream, 0, 1);
  else
    draw_normal(v, n, stream, 0, 1);
  for (size_t i = 0; i < n; i++) {
    if (c->input_fill == FILL_TIES) v[i] = round(v[i]);
    if (c->input_fill == FILL_NAN && i % 17 == 5) v[i] = NAN;
    if (c->input_fill == FILL_INF && i % 7 == 5) v[i] = i % 2 ? INFINITY : -INFINITY;
    if (c->input_fill == FILL_EDGE && i % 3 == 0) v[i] = 0;
    if (c->input_fill == FILL_EDGE && i % 5 == 1) v[i] = 1;
  }
}

/* Draws integers 0 <= v < below. Neighbours differ, because the step is no multiple of `below`. */
static inline void draw_integers(double *v, size_t n, uint32_t stream, int64_t below) {
  size_t step = below % 7 ? 7 : 5;
  for (size_t i = 0; i < n; i++) v[i] = (double)((i * step + stream % 5) % (size_t)below);
}

static inline void draw_other_inputs(const op_case *c, uint32_t stream, values *s) {
  const clv_node_desc *d = &c->d;
  for (int i = 1; i < d->n_in; i++) {
    double *v = s->v[V_IN + i];
    size_t n = s->n[V_IN + i];
    if (c->packed_lengths.rank && i == d->n_in - 1)
      for (size_t j = 0; j < n; j++) v[j] = (double)c->packed_lengths.dim[j];
    else if (is_integer_input(d->op, i))
      draw_integers(v, n, stream, get_integer_limit(d, i));
    else if (c->second_input_fill == FILL_UNIT)
      draw_uniform(v, n, stream + (uint32_t)i, 0, 1);
    else
      draw_normal(v, n, stream + 100 + (uint32_t)i, 0, 1);
  }
}

/* Draws parameters. A buffer whose initial value is 1 is a variance, so it stays positive. */
static inline void draw_params(const clv_node_desc *d, uint32_t stream, values *s) {
  clv_slot slot[CLV_MAX_PARAMS];
  int n_slots = get_slots(d, slot);
  for (int i = 0; i < n_slots; i++)
    if (slot[i].is_buffer && slot[i].init == CLV_INIT_ONE)
      draw_uniform(s->v[V_PARAM + i], s->n[V_PARAM + i], stream + 5 + (uint32_t)i, 0.5f, 2);
    else
      draw_normal(s->v[V_PARAM + i], s->n[V_PARAM + i], stream + 200 + (uint32_t)i, 0, 0.5f);
}

static int compare_ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Draws row numbers. If the op subtracts columns (attribute `minus`), the numbers of a position
 * ascend, so that no difference is negative. */
static inline void draw_row_numbers(const clv_node_desc *d, uint32_t stream, values *s) {
  double *v = s->v[V_IN];
  size_t n = s->n[V_IN], row_width = clv_row_numbers_of(d).width;
  draw_integers(v, n, stream, d->attrs.rows);
  for (size_t i = 0; d->attrs.minus >= 0 && i < n; i += row_width)
    qsort(v + i, row_width, sizeof *v, compare_ascending);
}

/* Draws values for a case; every call for the case draws the same values. */
static inline void draw_given_values(const op_case *c, values *s) {
  const clv_node_desc *d = &c->d;
  uint32_t stream = 0;
  for (const char *p = c->name; *p; p++) stream = stream * 31 + (uint8_t)*p;
  if (is_integer_input(d->op, 0))
    draw_row_numbers(d, stream, s);
  else
    draw_input(c, stream, s->v[V_IN], s->n[V_IN]);
  draw_other_inputs(c, stream, s);
  draw_params(d, stream, s);
  draw_normal(s->v[V_DOUT], s->n[V_DOUT], stream + 9, 0, 1);
  if (is_loss(d->op)) s->v[V_DOUT][0] = 0.375;
}

/* Draws the given values of a case. If the last call was for a case with the same name and the same
 * shapes of inputs, copies the values drawn then. */
static inline void draw_case(const op_case *c, values *s) {
  static char name[sizeof c->name];
  static clv_shape in[CLV_MAX_IN];
  static values last;
  if (strcmp(name, c->name) != 0 || memcmp(in, c->d.in, sizeof in) != 0) {
    free_values(&last);
    allocate_values(&last, &c->d);
    draw_given_values(c, &last);
    memcpy(name, c->name, sizeof name);
    memcpy(in, c->d.in, sizeof in);
  }
  copy_given_values(s, &last);
}

#endif
