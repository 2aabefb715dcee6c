/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what a program hears about a node that has missed UNLOAD because its link broke, before the
 * link reports that. The linker redirects the two calls by which a load reaches the node to this
 * file (--wrap): the node answers that it has the module, and nothing can be sent to it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
/* cmocka.h requires the headers above */
#include <cmocka.h>

#include "master/api/core/core_int.h"

static bool is_link_broken;
static int n_loads, n_unloads;

cleave_status __real_api_load_module(cleave_module *m, uint64_t deadline_ms, cleave_error *error);
cleave_status __wrap_api_load_module(cleave_module *m, uint64_t deadline_ms, cleave_error *error);
cleave_status __real_api_send(cleave_runtime *rt, uint32_t node, clv_packet *p,
                              cleave_error *error);
cleave_status __wrap_api_send(cleave_runtime *rt, uint32_t node, clv_packet *p,
                              cleave_error *error);

cleave_status __wrap_api_load_module(cleave_module *m, uint64_t deadline_ms, cleave_error *error) {
  if (!is_link_broken) return __real_api_load_module(m, deadline_ms, error);
  n_loads++;
  return api_fail(error, CLV_EXISTS, "module 0 is loaded already");
}

cleave_status __wrap_api_send(cleave_runtime *rt, uint32_t node, clv_packet *p,
                              cleave_error *error) {
  if (!is_link_broken || p->frame.kind != CLV_UNLOAD) return __real_api_send(rt, node, p, error);
  n_unloads++;
  clv_packet_free(p);
  return api_fail(error, CLV_UNAVAILABLE, "the link has ended");
}

static void load_at_a_node_that_missed_unload_reports_the_loss(void **state) {
  (void)state;
  cleave_runtime *rt;
  cleave_module *m;
  cleave_error e = {0};
  const cleave_module_options o = {.size = sizeof o, .name = "m", .seed = 5};
  const cleave_input x = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  assert_int_equal(cleave_open_text("alone", "version: 1\nname: alone\n", NULL, &rt, &e), 0);
  assert_int_equal(cleave_load_layers(rt, &o, "[{op: linear, out: 2}]", &x, &m, &e), 0);
  is_link_broken = true;
  assert_int_equal(cleave_module_place(rt, m, true, 0, &e), CLEAVE_UNAVAILABLE);
  assert_string_equal(e.text, "the link has ended");
  assert_int_equal(n_loads, 1);
  assert_int_equal(n_unloads, 1);
  is_link_broken = false;
  assert_int_equal(cleave_module_place(rt, m, true, 0, &e), 0);
  assert_int_equal(cleave_close(rt, 0, NULL, &e), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(load_at_a_node_that_missed_unload_reports_the_loss),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
