/* SPDX-License-Identifier: Apache-2.0
 *
 * Two devices of one node.
 *   api_devices SESSION.yaml NODE OTHER   NODE has cpu:0 and cpu:1; prints a digest as api_program
 *   api_devices SESSION.yaml NODE large   a module of 4 MB on cpu:0 is refused, a small one is not
 */
#include "api_int.h"

static bool load_on(const char *device, const char *name, int64_t in, int64_t out,
                    cleave_module **ret) {
  char layers[64];
  cleave_input rows = CLEAVE_INPUT(CLEAVE_F32, 4, in);
  cleave_module_options o = {
      .size = sizeof o, .name = name, .at = at_a, .device = device, .seed = 7};
  snprintf(layers, sizeof layers, "[{op: linear, out: %d}]", (int)out);
  MUST(cleave_load_layers(rt, &o, layers, &rows, ret, e));
  return true;
}

static bool load_loss_on(const char *device, const char *at, const char *name, bool any,
                         cleave_module **ret) {
  cleave_input rows = CLEAVE_INPUT(CLEAVE_F32, 4, 2);
  cleave_module_options o = {
      .size = sizeof o, .name = name, .at = at, .device = device, .any_device = any};
  MUST(cleave_load_loss(rt, &o, "mse", &rows, ret, e));
  return true;
}

static bool lives(cleave_context c, cleave_module *m, const char *device) {
  cleave_place place;
  MUST(cleave_gradient_place(rt, c, m, "0.weight", 0, &place, e));
  CHECK(strcmp(place.node, at_a) == 0 && strcmp(place.device, device) == 0);
  CHECK(strcmp(cleave_module_device(m), device) == 0);
  return true;
}

/* Outputs on cpu:0, labels on cpu:1, and a loss on either. */
static bool values_on_two_devices_of_one_node_do_not_meet(void) {
  cleave_module *first, *second, *loss[3], *plain;
  cleave_context c;
  cleave_reference x, y, labels, l, t;
  cleave_place place;
  cleave_tensor g = {0};
  float numbers[12], target[8];
  fill(numbers, 12, 71);
  fill(target, 8, 72);
  DO(load_on("cpu:0", "outputs", 3, 2, &first));
  DO(load_on("cpu:1", "labels", 3, 2, &second));
  DO(load_on(NULL, "beside", 2, 2, &plain));
  DO(load_loss_on("cpu:0", at_a, "strict", false, &loss[0]));
  DO(load_loss_on("cpu:1", at_a, "any", true, &loss[1]));
  DO(load_loss_on(NULL, at_b, "elsewhere", false, &loss[2]));
  DO(open_context(&c));
  DO(leaf(c, numbers, 4, 3, false, &x));
  DO(leaf(c, target, 4, 2, false, &t));
  MUST(cleave_call(rt, c, first, &x, 1, &y, e));
  MUST(cleave_call(rt, c, second, &x, 1, &labels, e));
  cleave_reference both[] = {y, labels};
  REFUSED(cleave_call(rt, c, loss[0], both, 2, &l, e), CLEAVE_PRECONDITION,
          "input 1 ('target') is on device cpu:1 of the same node; load the module with device "
          "\"cpu:1\", or with any_device");
  REFUSED(cleave_call(rt, c, plain, &y, 1, &l, e), CLEAVE_PRECONDITION,
          "module 'beside' on device cpu of");
  MUST(cleave_owner(rt, labels, &place, e));
  CHECK(strcmp(place.device, "cpu:1") == 0);
  MUST(cleave_call(rt, c, loss[0], (cleave_reference[]){y, t}, 2, &l, e)); /* a leaf comes along */
  if (strcmp(at_a, at_b) != 0) MUST(cleave_call(rt, c, loss[2], both, 2, &l, e));
  MUST(cleave_call(rt, c, loss[1], both, 2, &l, e));
  DO(backward(c, l, false));
  DO(lives(c, first, "cpu:0"));
  DO(lives(c, second, "cpu:1"));
  DO(gradient(c, second, "0.weight", &g));
  note(&g);
  cleave_tensor_free(&g);
  return close_context(c);
}

static bool a_device_that_is_not_there_is_refused(void) {
  cleave_module *m;
  cleave_input rows = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module_options o = {.size = sizeof o, .name = "far", .at = at_a, .device = "cpu:7"};
  if (strcmp(at_a, "master") == 0) {
    REFUSED(cleave_load_layers(rt, &o, "[{op: relu}]", &rows, &m, e), CLEAVE_INVALID,
            "no device 'cpu:7' at master, only cpu, cpu:0 and cpu:1");
    return true;
  }
  MUST(cleave_load_layers(rt, &o, "[{op: relu}]", &rows, &m, e));
  REFUSED(cleave_module_place(rt, m, false, 0, e), CLEAVE_INVALID,
          "it has no device 'cpu:7'; it has: cpu, cpu:0, cpu:1");
  return true;
}

/* With device_memory: 7MiB each device has room for one of these. */
static bool each_device_has_an_account_of_its_own(void) {
  cleave_module *a, *b, *c;
  DO(load_on("cpu:0", "full", 1000, 1000, &a));
  DO(load_on("cpu:1", "apart", 1000, 1000, &b));
  DO(load_on("cpu:0", "too much", 1000, 1000, &c));
  MUST(cleave_module_place(rt, a, false, 0, e));
  MUST(cleave_module_place(rt, b, false, 0, e));
  REFUSED(cleave_module_place(rt, c, false, 0, e), CLEAVE_EXHAUSTED,
          "the quota of this device; raise device_memory in worker.yaml");
  printf("placed\n");
  fflush(stdout);
  (void)getchar();
  return true;
}

static const test of_all[] = {
    TEST(values_on_two_devices_of_one_node_do_not_meet),
    TEST(a_device_that_is_not_there_is_refused),
};
static const test of_the_large[] = {TEST(each_device_has_an_account_of_its_own)};

int main(int argc, char **argv) {
  if (argc != 4 || !open_session(argv)) return 2;
  (void)(strcmp(argv[3], "large") == 0 ? RUN_ALL(of_the_large) : RUN_ALL(of_all));
  print_digest();
  cleave_error end;
  if (cleave_close(rt, 0, NULL, &end) != CLEAVE_OK) return 1;
  return n_failed ? 1 : 0;
}
