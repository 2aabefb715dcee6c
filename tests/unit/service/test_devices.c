/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the devices of a worker: which backend has which device, with which account, and which
 * device is meant if none is named.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/far.h"
#include "worker/service/service_int.h"

#define assert_ok(call)                             \
  do {                                              \
    clv_err err;                                    \
    if ((call) != CLV_OK) fail_msg("%s", err.text); \
  } while (0)

static const clv_backend *find_backend(const clv_service *v, const char *name) {
  const clv_device *d;
  assert_ok(clv_service_find_device(v, name, &d, &err));
  return d->backend;
}

static void assert_refused(const clv_service *v, const char *name, const char *wanted_text) {
  const clv_device *d;
  clv_err err;
  assert_int_equal(clv_service_find_device(v, name, &d, &err), CLV_INVALID);
  if (!strstr(err.text, wanted_text)) fail_msg("'%s' lacks '%s'", err.text, wanted_text);
}

static void host_without_devices_resolves_auto_to_cpu(void **state) {
  const clv_backend *cpu = clv_backend_cpu();
  clv_worker_config config = {.cpu_devices = 1};
  clv_service v = {.config = &config};
  (void)state;
  assert_ok(clv_service_open_devices(&v, &err));
  assert_int_equal(v.n_devices, 1);
  assert_ptr_equal(find_backend(&v, ""), cpu);
  assert_ptr_equal(find_backend(&v, "auto"), cpu);
  assert_ptr_equal(find_backend(&v, "cpu"), cpu);
  assert_refused(&v, "far:0", "this worker has no device 'far:0', only cpu");
  clv_service_close_devices(&v);
}

/* Other devices are listed first and have their own accounts; cpu and its parts share one
 * backend. */
static void other_devices_come_first_with_own_accounts(void **state) {
  const clv_backend *cpu = clv_backend_cpu();
  clv_backend second_device = *far_get_backend(cpu);
  const clv_backend *devices[] = {far_get_backend(cpu), &second_device};
  clv_worker_config config = {.cpu_devices = 2, .device_memory = 1000};
  clv_service v = {.config = &config, .other_backends = {devices, 2}};
  clv_err why;
  (void)state;
  second_device.device = "far:1";
  assert_ok(clv_service_open_devices(&v, &err));
  assert_int_equal(v.n_devices, 5);
  assert_ptr_equal(find_backend(&v, ""), devices[0]);
  assert_ptr_equal(find_backend(&v, "auto"), devices[0]);
  assert_ptr_equal(find_backend(&v, "far:1"), &second_device);
  assert_ptr_equal(find_backend(&v, "cpu"), cpu);
  assert_ptr_equal(find_backend(&v, "cpu:1"), cpu);
  assert_ptr_equal(clv_service_backend(&v), devices[0]);
  assert_refused(&v, "far:2", "only far:0, far:1, cpu, cpu:0, cpu:1");
  for (uint32_t i = 0; i < v.n_devices; i++)
    assert_int_equal(clv_service_is_first_with_backend(&v, i), i < 3);
  assert_true(v.devices[0].memory_bytes == far_region && v.devices[1].memory_bytes == far_region);
  assert_int_equal(v.devices[2].memory_bytes, 0);
  assert_ok(clv_account_charge(v.devices[0].account, CLV_QUOTA_BYTES, 1000, &err));
  assert_int_equal(clv_account_charge(v.devices[0].account, CLV_QUOTA_BYTES, 1, &why),
                   CLV_EXHAUSTED);
  assert_ok(clv_account_charge(v.devices[1].account, CLV_QUOTA_BYTES, 1000, &err));
  clv_service_close_devices(&v);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(host_without_devices_resolves_auto_to_cpu),
      cmocka_unit_test(other_devices_come_first_with_own_accounts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
