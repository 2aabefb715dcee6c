/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests a node with two devices through the C API. NODE has cpu:0 and cpu:1.
 *   api_devices SESSION.yaml NODE OTHER   modules at NODE and OTHER; prints a digest as api_program
 *   api_devices SESSION.yaml NODE activations   values of 2 MiB on cpu:0 and cpu:1
 *   api_devices SESSION.yaml NODE large   a module of 4 MB on cpu:0 is refused, a small one is not
 */
#include "api_int.h"

static const char *session;

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

static bool load_loss_on(const char *device, const char *at, const char *name, bool copies_inputs,
                         cleave_module **ret) {
  cleave_input rows = CLEAVE_INPUT(CLEAVE_F32, 4, 2);
  cleave_module_options o = {
      .size = sizeof o, .name = name, .at = at, .device = device, .copies_inputs = copies_inputs};
  MUST(cleave_load_loss(rt, &o, "mse", &rows, ret, e));
  return true;
}

static bool is_on_device(cleave_context c, cleave_module *m, const char *device) {
  cleave_place place;
  MUST(cleave_gradient_place(rt, c, m, "0.weight", 0, &place, e));
  CHECK(strcmp(place.node, at_a) == 0 && strcmp(place.device, device) == 0);
  CHECK(strcmp(cleave_module_device(m), device) == 0);
  return true;
}

/* Outputs are on cpu:0 and labels on cpu:1. A loss on cpu:0 is refused; a loss with copies_inputs,
 * or at another node, is computed. */
static bool loss_over_two_devices_of_a_node_is_refused(void) {
  cleave_module *first_module, *second_module, *loss[3], *module_without_device;
  cleave_context c;
  cleave_reference x, y, labels, l, t;
  cleave_place place;
  cleave_tensor g = {0};
  float numbers[12], target[8];
  fill_with_random(numbers, 12, 71);
  fill_with_random(target, 8, 72);
  DO(load_on("cpu:0", "outputs", 3, 2, &first_module));
  DO(load_on("cpu:1", "labels", 3, 2, &second_module));
  DO(load_on(NULL, "beside", 2, 2, &module_without_device));
  DO(load_loss_on("cpu:0", at_a, "strict", false, &loss[0]));
  DO(load_loss_on("cpu:1", at_a, "any", true, &loss[1]));
  DO(load_loss_on(NULL, at_b, "elsewhere", false, &loss[2]));
  DO(open_context(&c));
  DO(make_leaf(c, numbers, 4, 3, false, &x));
  DO(make_leaf(c, target, 4, 2, false, &t));
  MUST(cleave_call(rt, c, first_module, &x, 1, &y, e));
  MUST(cleave_call(rt, c, second_module, &x, 1, &labels, e));
  cleave_reference outputs_and_labels[] = {y, labels};
  REFUSED(cleave_call(rt, c, loss[0], outputs_and_labels, 2, &l, e), CLEAVE_PRECONDITION,
          "input 1 ('target') is on device cpu:1 of the same node; load the module with device "
          "\"cpu:1\", or with copies_inputs");
  REFUSED(cleave_call(rt, c, module_without_device, &y, 1, &l, e), CLEAVE_PRECONDITION,
          "module 'beside' on device cpu of");
  MUST(cleave_owner(rt, labels, &place, e));
  CHECK(strcmp(place.device, "cpu:1") == 0);
  /* a leaf has no device of its own: it is sent to the device of the module that reads it */
  MUST(cleave_call(rt, c, loss[0], (cleave_reference[]){y, t}, 2, &l, e));
  if (strcmp(at_a, at_b) != 0) MUST(cleave_call(rt, c, loss[2], outputs_and_labels, 2, &l, e));
  MUST(cleave_call(rt, c, loss[1], outputs_and_labels, 2, &l, e));
  DO(backward(c, l, false));
  DO(is_on_device(c, first_module, "cpu:0"));
  DO(is_on_device(c, second_module, "cpu:1"));
  DO(read_gradient(c, second_module, "0.weight", &g));
  add_to_digest(&g);
  cleave_tensor_free(&g);
  return close_context(c);
}

static bool missing_device_is_refused(void) {
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

/* device_memory is 7MiB, so each device has space for one module of 1000 x 1000. */
static bool each_device_has_its_own_memory_account(void) {
  cleave_module *a, *b, *c;
  DO(load_on("cpu:0", "full", 1000, 1000, &a));
  DO(load_on("cpu:1", "apart", 1000, 1000, &b));
  DO(load_on("cpu:0", "too much", 1000, 1000, &c));
  MUST(cleave_module_place(rt, a, false, 0, e));
  MUST(cleave_module_place(rt, b, false, 0, e));
  REFUSED(cleave_module_place(rt, c, false, 0, e), CLEAVE_EXHAUSTED,
          "left; raise device_memory in worker.yaml");
  printf("placed\n");
  fflush(stdout);
  (void)getchar();
  return true;
}

static bool call_n_times(cleave_runtime *runtime, cleave_context c, cleave_module *m, int n,
                         cleave_error *error) {
  static const float numbers[4 * 131072]; /* numbers of 2 MiB in total */
  const cleave_tensor t = CLEAVE_TENSOR_F32(numbers, 4, 131072);
  cleave_reference x, y;
  cleave_tensor got = {0};
  bool is_good = true;
  for (int i = 0; i < n && is_good; i++)
    is_good = cleave_leaf(runtime, c, &t, false, &x, error) == CLEAVE_OK &&
              cleave_rpc_sync(runtime, c, m, &x, 1, 0, &y, &got, error) == CLEAVE_OK;
  cleave_tensor_free(&got);
  return is_good;
}

static bool load_relu(cleave_runtime *runtime, const char *device, cleave_module **ret) {
  cleave_input rows = CLEAVE_INPUT(CLEAVE_F32, 4, 131072);
  cleave_module_options o = {.size = sizeof o, .name = device, .at = at_a, .device = device};
  MUST(cleave_load_layers(runtime, &o, "[{op: relu}]", &rows, ret, e));
  MUST(cleave_module_place(runtime, *ret, false, 0, e));
  return true;
}

/* Another program uses most of the 16 MiB of cpu:0. The error of this program's call reports how
 * much memory cpu:0 has left, but not how much each program uses. cpu:1 has memory left, and cpu:0
 * has memory again when the other program has closed its context. */
static bool activations_are_charged_to_their_device(void) {
  cleave_options options = {.size = sizeof options, .deadline_ms = 20000};
  cleave_runtime *other_runtime;
  cleave_module *other_module, *module, *module_on_other_device;
  cleave_context other_context, c;
  cleave_error error = {.text = ""};
  unsigned long long missing_bytes, left_bytes;
  MUST(cleave_open(session, &options, &other_runtime, e));
  DO(load_relu(other_runtime, "cpu:0", &other_module) && load_relu(rt, "cpu:0", &module));
  DO(load_relu(rt, "cpu:1", &module_on_other_device));
  MUST(cleave_context_open(other_runtime, NULL, &other_context, e));
  DO(call_n_times(other_runtime, other_context, other_module, 3, &error));
  DO(open_context(&c));
  CHECK(!call_n_times(rt, c, module, 8, &error) && error.status == CLEAVE_EXHAUSTED);
  const char *message = strstr(error.text, "device cpu:0: ");
  snprintf(why, sizeof why, "%.900s", error.text);
  if (!message || sscanf(message,
                         "device cpu:0: %llu bytes more exceed the quota of this device, which "
                         "has %llu left; raise device_memory",
                         &missing_bytes, &left_bytes) != 2)
    return false;
  CHECK(left_bytes < missing_bytes);
  (void)!cleave_context_close(rt, c, 0, NULL);
  DO(open_context(&c));
  DO(call_n_times(rt, c, module_on_other_device, 3, &error));
  MUST(cleave_context_close(other_runtime, other_context, 0, e));
  DO(call_n_times(rt, c, module, 2, &error));
  DO(close_context(c));
  MUST(cleave_close(other_runtime, 0, NULL, e));
  return true;
}

static const test placement_tests[] = {
    TEST(loss_over_two_devices_of_a_node_is_refused),
    TEST(missing_device_is_refused),
};
static const test activation_tests[] = {TEST(activations_are_charged_to_their_device)};
static const test memory_tests[] = {TEST(each_device_has_its_own_memory_account)};

int main(int argc, char **argv) {
  if (argc != 4 || !open_session(argv)) return 2;
  session = argv[1];
  if (strcmp(argv[3], "large") == 0)
    RUN_ALL(memory_tests);
  else if (strcmp(argv[3], "activations") == 0)
    RUN_ALL(activation_tests);
  else
    RUN_ALL(placement_tests);
  print_digest();
  cleave_error close_error;
  if (cleave_close(rt, 0, NULL, &close_error) != CLEAVE_OK) return 1;
  return n_failed ? 1 : 0;
}
