/* SPDX-License-Identifier: Apache-2.0
 *
 * The devices that modules can compute on: the command `devices`, which lists them, and opening the
 * devices that worker.yaml names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "kernels/load/load.h"
#include "worker/worker_int.h"

static void log_notice(void *user, const char *text) {
  (void)user;
  clv_log(CLV_LOG_WARN, "%s", text);
}

/* Loads the library for NVIDIA devices. c: configuration that names the library and the folders to
 * search; NULL: the defaults. is_optional: on a host without devices fail with the first reason
 * found, so that the worker starts at once. */
static clv_code load_cuda_library(const clv_worker_config *c, bool is_optional,
                                  const clv_cuda_library **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes folders = {0};
  for (size_t i = 0; c && i < c->cuda.folders.n; i++)
    clv_bytes_printf(&folders, "%s%s", i ? ":" : "", c->cuda.folders.items[i]);
  if (folders.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory for cuda.folders");
  const clv_cuda_options o = {.file = c ? c->cuda.library : NULL,
                              .folders = folders.data,
                              .plans = c ? c->cuda.plans_folder : NULL,
                              .all_reasons = !is_optional,
                              .notifier = {.notify = log_notice}};
  return clv_cuda_load(&o, ret, err);
}

/* ---- the command `devices` ------------------------------------------------------------------- */

static void print_cpu(bool json) {
  const clv_backend *b = clv_backend_cpu();
  long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
  if (json)
    printf("{\"device\":\"cpu\",\"cores\":%ld,\"isa\":\"%s\",\"libraries\":\"%s\"}\n", n_cores,
           b->isa(b), b->libraries(b));
  else
    printf("cpu  %ld core%s, %s, %s\n", n_cores, CLV_S(n_cores), b->isa(b), b->libraries(b));
}

static void print_device_json(int device, const clv_device_info *info) {
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  clv_bytes_printf(&line, "{\"device\":\"cuda:%d\",\"name\":", device);
  clv_bytes_add_json(&line, info->name);
  clv_bytes_printf(&line, ",\"memory_bytes\":%zu,\"capability\":\"%d.%d\",\"libraries\":",
                   info->memory_bytes, info->capability / 10, info->capability % 10);
  clv_bytes_add_json(&line, info->libraries);
  if (line.data) printf("%s}\n", line.data);
}

static void print_device(int device, const clv_device_info *info) {
  char memory_text[32];
  printf("cuda:%d  %s, %s, compute capability %d.%d, %s\n", device, info->name,
         clv_format_size(info->memory_bytes, memory_text, sizeof memory_text),
         info->capability / 10, info->capability % 10, info->libraries);
}

/* Prints that `device` cannot be used, with the reason `why`. */
static void print_missing_device(bool json, const char *device, const char *why) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_add_json(&text, why);
  if (json && text.data)
    printf("{\"device\":\"%s\",\"missing\":%s}\n", device, text.data);
  else
    printf("%s  none: %s\n", device, why);
}

static void print_cuda_devices(bool json, const clv_cuda_library *cuda, int n) {
  for (int i = 0; i < n; i++) {
    char name[24];
    clv_device_info info;
    clv_err err;
    snprintf(name, sizeof name, "cuda:%d", i);
    if (cuda->describe(i, &info, &err) != CLV_OK)
      print_missing_device(json, name, err.text);
    else if (json)
      print_device_json(i, &info);
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
    clv_worker_arguments arguments_with_file = *a;
    arguments_with_file.config_path = a->line.words[0];
    if (clv_worker_read_config(&arguments_with_file, &config, &err) != CLV_OK)
      return clv_exit_report(CLV_EXIT_CONFIG, &err);
  }
  print_cpu(a->prints_json);
  if (load_cuda_library(config, false, &cuda, &err) != CLV_OK || cuda->count(&n, &err) != CLV_OK)
    print_missing_device(a->prints_json, "cuda", err.text);
  else
    print_cuda_devices(a->prints_json, cuda, n);
  return CLV_EXIT_OK;
}

/* ---- the devices of worker.yaml -------------------------------------------------------------- */

/* The NVIDIA devices that worker.yaml's key `device` names: cuda:first_number to
 * cuda:(end_number - 1). */
typedef struct device_range {
  const clv_cuda_library *cuda;
  int first_number, end_number;
} device_range;

static bool is_device_optional(const clv_worker_config *c) {
  return strcmp(c->device, "auto") == 0;
}

/* Finds the NVIDIA devices that worker.yaml names, without opening them. */
static clv_code find_cuda_devices(const clv_worker_config *c, device_range *ret, clv_err *err) {
  int n = 0;
  *ret = (device_range){0};
  if (strcmp(c->device, "cpu") == 0) return CLV_OK;
  CLV_TRY(load_cuda_library(c, is_device_optional(c), &ret->cuda, err));
  CLV_TRY(ret->cuda->count(&n, err));
  ret->end_number = CLV_MIN(n, MAX_CUDA_DEVICES);
  if (strncmp(c->device, "cuda:", 5) != 0) return CLV_OK;
  ret->first_number = atoi(c->device + 5);
  ret->end_number = ret->first_number + 1;
  if (ret->first_number < n) return CLV_OK;
  return clv_fail(err, CLV_UNAVAILABLE, "this host has only %d NVIDIA device%s", n, CLV_S(n));
}

/* Returns `code`, unless worker.yaml has `device: auto`: then logs the reason `why`, and returns
 * CLV_OK, so that the worker computes on the processor. */
static clv_code fall_back_to_cpu(const clv_worker_config *c, clv_code code, const clv_err *why,
                                 clv_err *err) {
  if (code == CLV_OK) return CLV_OK;
  if (!is_device_optional(c))
    return clv_fail(err, code, "%s: device %s: %.400s", c->file, c->device, why->text);
  clv_notice(CLV_LOG_WARN, "device", "device auto computes on cpu: %s", why->text);
  return CLV_OK;
}

clv_code clv_worker_check_device(const clv_worker_config *c, clv_err *err) {
  device_range w;
  clv_err why;
  clv_code code = find_cuda_devices(c, &w, &why);
  return fall_back_to_cpu(c, code, &why, err);
}

void clv_worker_devices_closep(clv_worker_devices *d) {
  for (size_t i = 0; i < d->n_backends; i++) d->cuda->close(d->backends[i]);
  d->n_backends = 0;
}

static clv_code open_devices(const clv_worker_config *c, clv_worker_devices *ret, clv_err *err) {
  device_range w;
  CLV_TRY(find_cuda_devices(c, &w, err));
  ret->cuda = w.cuda;
  for (int i = w.first_number; i < w.end_number; i++) {
    CLV_TRY(w.cuda->open(i, &ret->backends[ret->n_backends], err));
    if (!c->cuda.graphs) ret->backends[ret->n_backends]->recording = NULL;
    ret->n_backends++;
  }
  return CLV_OK;
}

clv_code clv_worker_devices_open(const clv_worker_config *c, clv_worker_devices *ret,
                                 clv_err *err) {
  clv_err why;
  *ret = (clv_worker_devices){0};
  clv_code code = open_devices(c, ret, &why);
  if (code != CLV_OK) clv_worker_devices_closep(ret);
  return fall_back_to_cpu(c, code, &why, err);
}
