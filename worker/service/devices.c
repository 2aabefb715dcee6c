/* SPDX-License-Identifier: Apache-2.0
 *
 * The devices of a worker: first the devices other than the processor, then the processor. With
 * `cpu_devices` above 1 in worker.yaml, the processor is also offered under the names cpu:0, cpu:1
 * and so on. Each device has an account, to which the memory of all modules and calls on the device
 * is charged, whatever their identity.
 */
#include <stdio.h>
#include <string.h>

#include "worker/service/service_int.h"

static clv_code add_device(clv_service *v, const char *name, const clv_backend *backend,
                           clv_err *err) {
  clv_device *d = &v->devices[v->n_devices];
  size_t free_bytes;
  clv_account_options o = {.owner_in_messages = "this device",
                           .limits = {[CLV_QUOTA_BYTES] = v->config->device_memory},
                           .limit_keys = {[CLV_QUOTA_BYTES] = "device_memory"},
                           .is_shared = true,
                           .reports_remaining = true};
  d->memory_bytes = 0;
  if (backend->memory)
    CLV_TRY(backend->memory->get_free_bytes(backend, &free_bytes, &d->memory_bytes, err));
  CLV_TRY(clv_account_new(&o, &d->account, err));
  snprintf(d->name, sizeof d->name, "%s", name);
  d->backend = backend;
  v->n_devices++;
  return CLV_OK;
}

clv_code clv_service_open_devices(clv_service *v, clv_err *err) {
  const clv_backend *cpu = clv_backend_cpu();
  unsigned n = (unsigned)CLV_MIN(v->config->cpu_devices, (uint64_t)MAX_CPU_DEVICES);
  if (v->other_backends.n > MAX_OTHER_DEVICES)
    return clv_fail(err, CLV_EXHAUSTED, "%zu devices besides the processor; at most %d",
                    v->other_backends.n, MAX_OTHER_DEVICES);
  for (size_t i = 0; i < v->other_backends.n; i++)
    CLV_TRY(add_device(v, v->other_backends.list[i]->device, v->other_backends.list[i], err));
  CLV_TRY(add_device(v, cpu->device, cpu, err));
  for (unsigned i = 0; n > 1 && i < n; i++) {
    char name[sizeof v->devices->name];
    snprintf(name, sizeof name, "%.8s:%u", cpu->device, i);
    CLV_TRY(add_device(v, name, cpu, err));
  }
  return CLV_OK;
}

bool clv_service_is_first_with_backend(const clv_service *v, uint32_t i) {
  for (uint32_t k = 0; k < i; k++)
    if (v->devices[k].backend == v->devices[i].backend) return false;
  return true;
}

const clv_backend *clv_service_backend(const clv_service *v) { return v->devices[0].backend; }

clv_code clv_service_new_device_accounts(clv_session *s, clv_err *err) {
  const clv_service *v = s->service;
  for (uint32_t i = 0; i < v->n_devices; i++) {
    clv_account_options o = {.parent = v->devices[i].account,
                             .owner_in_messages = "this session on the device"};
    CLV_TRY(clv_account_new(&o, &s->device_accounts[i], err));
  }
  return CLV_OK;
}

void clv_service_close_devices(clv_service *v) {
  for (uint32_t i = 0; i < v->n_devices; i++) clv_account_unref(v->devices[i].account);
}

clv_code clv_service_find_device(const clv_service *v, const char *name, const clv_device **ret,
                                 clv_err *err) {
  char device_list[MAX_DEVICES * (sizeof v->devices->name + 2)] = "";
  for (uint32_t i = 0; i < v->n_devices; i++) {
    const clv_device *d = &v->devices[i];
    *ret = d;
    if (strcmp(name, d->name) == 0) return CLV_OK;
    if (i == 0 && (!name[0] || strcmp(name, "auto") == 0)) return CLV_OK;
    size_t at = strlen(device_list);
    snprintf(device_list + at, sizeof device_list - at, "%s%s", i ? ", " : "", d->name);
  }
  return clv_fail(err, CLV_INVALID, "this worker has no device '%s', only %s", name, device_list);
}
