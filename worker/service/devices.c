/* SPDX-License-Identifier: Apache-2.0
 *
 * What modules can compute on: the processor, and the devices that it is offered as beside. Each
 * has an account for the memory of its modules and of their calls, whosever they are.
 */
#include <stdio.h>
#include <string.h>

#include "worker/service/service_int.h"

static clv_code add_device(clv_service *v, const char *name, clv_err *err) {
  clv_device *d = &v->devices[v->n_devices];
  clv_account_options o = {.of = "this device",
                           .most = {[CLV_QUOTA_BYTES] = v->config->device_memory},
                           .key = {[CLV_QUOTA_BYTES] = "device_memory"},
                           .shared = true,
                           .tells_left = true};
  CLV_TRY(clv_account_new(&o, &d->account, err));
  snprintf(d->name, sizeof d->name, "%s", name);
  v->n_devices++;
  return CLV_OK;
}

clv_code clv_service_open_devices(clv_service *v, clv_err *err) {
  unsigned n = (unsigned)CLV_MIN(v->config->cpu_devices, (uint64_t)MAX_CPU_DEVICES);
  CLV_TRY(add_device(v, clv_backend_cpu()->name, err));
  for (unsigned i = 0; n > 1 && i < n; i++) {
    char name[sizeof v->devices->name];
    snprintf(name, sizeof name, "%.8s:%u", clv_backend_cpu()->name, i);
    CLV_TRY(add_device(v, name, err));
  }
  return CLV_OK;
}

void clv_service_close_devices(clv_service *v) {
  for (uint32_t i = 0; i < v->n_devices; i++) clv_account_unref(v->devices[i].account);
}

clv_code clv_service_find_device(const clv_service *v, const char *name, const clv_device **ret,
                                 clv_err *err) {
  char has[160] = "";
  for (uint32_t i = 0; i < v->n_devices; i++) {
    const clv_device *d = &v->devices[i];
    *ret = d;
    if (strcmp(name, d->name) == 0) return CLV_OK;
    if (i == 0 && (!name[0] || strcmp(name, "auto") == 0)) return CLV_OK;
    size_t at = strlen(has);
    snprintf(has + at, sizeof has - at, "%s%s", i ? ", " : "", d->name);
  }
  return clv_fail(err, CLV_INVALID, "no device '%s' here, only %s", name, has);
}
