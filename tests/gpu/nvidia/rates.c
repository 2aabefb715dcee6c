/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures the rates of a device through the function table of its backend: copies, products,
 * convolutions, launches. These are the upper limits for later measurements.
 *
 * usage: rates [DEVICE]
 *
 * Prints a line of JSON for each rate. CLEAVE_CUDA_FOLDERS: see on_device.c. Exits with 77 if there
 * is no device.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/nvidia/nvidia.h"

enum { NO_DEVICE = 77, ROUNDS = 5, LAUNCHES = 200 };

/* Buffers and descriptors of the measured operations. An operation is enqueued n_times times
 * between two events. */
typedef struct bench {
  const clv_vendor *v;
  int device;
  clv_cuda_stream *s;
  clv_cuda_event *begin_event, *end_event;
  char *a, *b, *d, *host_memory; /* buffers of `bytes` each */
  size_t bytes;
  void *workspace;
  clv_cuda_matmul *product;
  clv_cuda_conv *conv;
} bench;

typedef clv_code operation(bench *m, clv_err *err);

static void must_succeed(clv_code code, const clv_err *err) {
  if (code == CLV_OK) return;
  fprintf(stderr, "%s\n", err->text);
  exit(1);
}

static clv_code copy_on_device(bench *m, clv_err *err) {
  return m->v->copy(m->s, m->d, m->a, m->bytes, err);
}
static clv_code fill_memory(bench *m, clv_err *err) {
  return m->v->fill(m->s, m->d, 0, m->bytes, err);
}
static clv_code copy_to_device(bench *m, clv_err *err) {
  return m->v->put(m->s, m->d, m->host_memory, m->bytes, err);
}
static clv_code copy_to_host(bench *m, clv_err *err) {
  return m->v->get(m->s, m->host_memory, m->d, m->bytes, err);
}
static clv_code fill_256_bytes(bench *m, clv_err *err) {
  return m->v->fill(m->s, m->d, 0, 256, err);
}
static clv_code run_matmul(bench *m, clv_err *err) {
  return m->v->matmul(m->s, m->product, (float *)m->a, (float *)m->b, NULL, 0, (float *)m->d,
                      m->workspace, err);
}
static clv_code run_conv(bench *m, clv_err *err) {
  return m->v->conv(m->s, m->conv, (float *)m->a, (float *)m->b, (float *)m->d, 0, m->workspace,
                    err);
}

static double measure_once(bench *m, operation *f, int n_times) {
  double ms = 0;
  clv_err err;
  must_succeed(m->v->event_record(m->begin_event, m->s, &err), &err);
  for (int i = 0; i < n_times; i++) must_succeed(f(m, &err), &err);
  must_succeed(m->v->event_record(m->end_event, m->s, &err), &err);
  must_succeed(m->v->event_finish(m->end_event, &err), &err);
  must_succeed(m->v->event_ms(m->begin_event, m->end_event, &ms, &err), &err);
  return ms / 1e3 / n_times;
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Prints the median rate of ROUNDS measurements, after one that is not counted. work_per_time: work
 * of one execution, in the unit of the rate. */
static void print_median(bench *m, const char *label, operation *f, int n_times,
                         double work_per_time, const char *unit) {
  double s[ROUNDS];
  measure_once(m, f, n_times);
  for (int i = 0; i < ROUNDS; i++) s[i] = measure_once(m, f, n_times);
  qsort(s, ROUNDS, sizeof *s, compare_doubles);
  printf("{\"what\":\"%s\",\"us\":%.2f,\"rate\":%.4g,\"unit\":\"%s\"}\n", label,
         1e6 * s[ROUNDS / 2], work_per_time / s[ROUNDS / 2], unit);
}

static void allocate_workspace(bench *m, size_t workspace) {
  clv_err err;
  if (m->workspace) m->v->free(m->s, m->workspace);
  must_succeed(m->v->allocate(m->s, workspace, &m->workspace, &err), &err);
}

static const char *const math_names[] = {"f32", "TF32", "bf16"};

static void measure_products(bench *m, clv_cuda_math math) {
  const int64_t n = 4096;
  const clv_cuda_matmul_desc d = {.a_is_transposed = true,
                                  .m = n,
                                  .n = n,
                                  .k = n,
                                  .lda = n,
                                  .ldb = n,
                                  .ldd = n,
                                  .batch = 1,
                                  .math = math};
  size_t workspace;
  clv_err err;
  must_succeed(m->v->matmul_new(m->device, &d, &m->product, &workspace, &err), &err);
  allocate_workspace(m, workspace);
  char label[64];
  snprintf(label, sizeof label, "product of 4096, %s", math_names[math]);
  print_median(m, label, run_matmul, 10, 2.0 * (double)(n * n * n), "FLOP/s");
  m->v->matmul_free(m->product);
}

static void measure_convolutions(bench *m, clv_cuda_math math) {
  static const char *const passes[] = {"forward", "grad_input", "grad_weight"};
  for (int pass = 0; pass < 3; pass++) {
    const clv_cuda_conv_desc d = {.pass = (clv_cuda_pass)pass,
                                  .groups = 1,
                                  .math = math,
                                  .window = {64, 128, 28, 28, 128, 28, 28, {3, 3}, {1, 1}, {1, 1}}};
    char label[64];
    size_t workspace;
    clv_err err;
    snprintf(label, sizeof label, "3x3 128->128 28x28, %s, %s", passes[pass], math_names[math]);
    if (m->v->conv_new(m->device, &d, &m->conv, &workspace, &err) != CLV_OK) {
      printf("{\"what\":\"%s\",\"missing\":\"%s\"}\n", label, err.text);
      continue;
    }
    allocate_workspace(m, workspace);
    print_median(m, label, run_conv, 10, 2.0 * 64 * 128 * 28 * 28 * 128 * 9, "FLOP/s");
    m->v->conv_free(m->conv);
  }
}

static void open_bench(bench *m) {
  char **const buffers[] = {&m->a, &m->b, &m->d};
  void *p;
  clv_err err;
  must_succeed(m->v->stream_new(m->device, false, &m->s, &err), &err);
  must_succeed(m->v->event_new(m->device, true, &m->begin_event, &err), &err);
  must_succeed(m->v->event_new(m->device, true, &m->end_event, &err), &err);
  for (size_t i = 0; i < CLV_COUNT(buffers); i++) {
    must_succeed(m->v->allocate(m->s, m->bytes, &p, &err), &err);
    /* a float with the bytes 0x3c is about 0.01 */
    must_succeed(m->v->fill(m->s, p, 0x3c, m->bytes, &err), &err);
    *buffers[i] = p;
  }
  must_succeed(m->v->host_allocate(m->bytes, &p, &err), &err);
  m->host_memory = p;
}

static void close_bench(bench *m) {
  m->v->host_free(m->host_memory);
  m->v->free(m->s, m->a);
  m->v->free(m->s, m->b);
  m->v->free(m->s, m->d);
  m->v->free(m->s, m->workspace);
  m->v->event_free(m->begin_event);
  m->v->event_free(m->end_event);
  m->v->stream_free(m->s);
}

int main(int argc, char **argv) {
  const clv_cuda_library *library = clv_cuda_entry(CLV_CUDA_ABI);
  bench m = {.v = clv_nvidia_vendor(), .device = argc > 1 ? atoi(argv[1]) : 0, .bytes = 256 << 20};
  clv_err err = {.text = "not so many"};
  int n;
  library->set_folders(getenv("CLEAVE_CUDA_FOLDERS"));
  if (library->count(&n, &err) != CLV_OK || m.device >= n) {
    printf("no device: %s\n", err.text);
    return NO_DEVICE;
  }
  open_bench(&m);
  print_median(&m, "copy on the device, read and written", copy_on_device, 20,
               2.0 * (double)m.bytes, "B/s");
  print_median(&m, "fill", fill_memory, 20, (double)m.bytes, "B/s");
  print_median(&m, "host to device", copy_to_device, 5, (double)m.bytes, "B/s");
  print_median(&m, "device to host", copy_to_host, 5, (double)m.bytes, "B/s");
  print_median(&m, "launches, one after the other", fill_256_bytes, LAUNCHES, 1, "1/s");
  for (int math = CLV_CUDA_F32; math <= CLV_CUDA_BF16; math++) {
    measure_products(&m, (clv_cuda_math)math);
    measure_convolutions(&m, (clv_cuda_math)math);
  }
  close_bench(&m);
  return 0;
}
