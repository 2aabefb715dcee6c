/* SPDX-License-Identifier: Apache-2.0
 *
 * What modules can compute on: the command `devices`, and whether the device of worker.yaml is
 * there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "kernels/load/load.h"
#include "worker/worker_int.h"

/* The library for NVIDIA's devices, looked for as the configuration says; NULL: none is given. */
static clv_code load_cuda(const clv_worker_config *c, const clv_cuda_library **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes folders = {0};
  for (size_t i = 0; c && i < c->cuda.folders.n; i++)
    clv_bytes_printf(&folders, "%s%s", i ? ":" : "", c->cuda.folders.items[i]);
  if (folders.failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for cuda.folders");
  const clv_cuda_options o = {.file = c ? c->cuda.library : NULL, .folders = folders.data};
  return clv_cuda_load(&o, ret, err);
}

/* ---- the command ----------------------------------------------------------------------------- */

static void print_cpu(bool json) {
  const clv_backend *b = clv_backend_cpu();
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  if (json)
    printf("{\"device\":\"cpu\",\"cores\":%ld,\"isa\":\"%s\",\"libraries\":\"%s\"}\n", cores,
           b->isa(b), b->libraries(b));
  else
    printf("cpu  %ld core%s, %s, %s\n", cores, CLV_S(cores), b->isa(b), b->libraries(b));
}

static void print_json(int device, const clv_device_info *info) {
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  clv_bytes_printf(&line, "{\"device\":\"cuda:%d\",\"name\":", device);
  clv_bytes_json(&line, info->name);
  clv_bytes_printf(&line, ",\"memory_bytes\":%zu,\"capability\":\"%d.%d\",\"libraries\":",
                   info->memory_bytes, info->capability / 10, info->capability % 10);
  clv_bytes_json(&line, info->libraries);
  if (line.data) printf("%s}\n", line.data);
}

static void print_device(int device, const clv_device_info *info) {
  char memory[32];
  printf("cuda:%d  %s, %s, compute capability %d.%d, %s\n", device, info->name,
         clv_format_size(info->memory_bytes, memory, sizeof memory), info->capability / 10,
         info->capability % 10, info->libraries);
}

/* Why there is no device, of all or of one. */
static void print_none(bool json, const char *device, const char *why) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_json(&text, why);
  if (json && text.data)
    printf("{\"device\":\"%s\",\"missing\":%s}\n", device, text.data);
  else
    printf("%s  none: %s\n", device, why);
}

static void print_cuda(bool json, const clv_cuda_library *cuda, int n) {
  for (int i = 0; i < n; i++) {
    char name[16];
    clv_device_info info;
    clv_err err;
    snprintf(name, sizeof name, "cuda:%d", i);
    if (cuda->describe(i, &info, &err) != CLV_OK)
      print_none(json, name, err.text);
    else if (json)
      print_json(i, &info);
    else
      print_device(i, &info);
  }
}

int clv_cmd_devices(void *args) {
  const clv_worker_arguments *a = args;
  CLV_AUTO(clv_worker_config_freep) clv_worker_config *config = NULL;
  const clv_cuda_library *cuda;
  clv_err err;
  int n = 0;
  if (a->line.n_words) {
    clv_worker_arguments named = *a;
    named.config = a->line.words[0];
    if (clv_worker_read(&named, &config, &err) != CLV_OK)
      return clv_exit_report(CLV_EXIT_CONFIG, &err);
  }
  print_cpu(a->json);
  if (load_cuda(config, &cuda, &err) != CLV_OK || cuda->count(&n, &err) != CLV_OK)
    print_none(a->json, "cuda", err.text);
  else
    print_cuda(a->json, cuda, n);
  return CLV_EXIT_OK;
}

/* ---- the device of worker.yaml --------------------------------------------------------------- */

/* The devices that the configuration means: *ret_n of them, from *ret_first on. */
static clv_code find_cuda(const clv_worker_config *c, const clv_cuda_library **ret, int *ret_first,
                          int *ret_n, clv_err *err) {
  bool one = strncmp(c->device, "cuda:", 5) == 0;
  int n = 0, first = one ? atoi(c->device + 5) : 0;
  CLV_TRY(load_cuda(c, ret, err));
  CLV_TRY((*ret)->count(&n, err));
  if (first >= n)
    return clv_fail(err, CLV_UNAVAILABLE, "this host has %d device%s of NVIDIA", n, CLV_S(n));
  *ret_first = first;
  *ret_n = one ? 1 : CLV_MIN(n, WORKER_MAX_CUDA);
  return CLV_OK;
}

static clv_code open_cuda(const clv_worker_config *c, clv_worker_devices *d, clv_err *err) {
  int first = 0, n = 0;
  CLV_TRY(find_cuda(c, &d->cuda, &first, &n, err));
  for (int i = 0; i < n; i++) {
    clv_backend *made;
    CLV_TRY(d->cuda->open(first + i, &made, err));
    d->opened[d->n++] = made;
  }
  return CLV_OK;
}

clv_code clv_worker_open_devices(const clv_worker_config *c, clv_worker_devices *d, clv_err *err) {
  clv_err why;
  *d = (clv_worker_devices){0};
  if (strcmp(c->device, "cpu") == 0 || open_cuda(c, d, &why) == CLV_OK) return CLV_OK;
  clv_worker_close_devices(d);
  if (strcmp(c->device, "auto") != 0)
    return clv_fail(err, why.code, "%s: device %s: %.400s", c->file, c->device, why.text);
  clv_notice(CLV_LOG_WARN, "device", "device auto computes on cpu: %s", why.text);
  return CLV_OK;
}

void clv_worker_close_devices(clv_worker_devices *d) {
  while (d->n > 0) clv_backend_drop(d->opened[--d->n]);
}

clv_backends clv_worker_backends(const clv_worker_devices *d) {
  return (clv_backends){.list = d->opened, .n = (size_t)d->n};
}
