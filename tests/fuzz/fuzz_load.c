/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes LoadModule, from the bytes of the message to a module with its memory and first plan, with
 * a small quota. A loaded module must have its parameters and an output, and at the end the whole
 * quota must be free again.
 */
#include "tests/fuzz/never.h"
#include "worker/service/service_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { QUOTA = 4 << 20 };

/* Asserts that each parameter of the module has a name and memory, and that its graph has an
 * output. */
static void check_loaded_module(clv_module *module) {
  clv_state_item item;
  for (uint32_t i = 0; clv_module_state_item(module, CLV_STATE_WEIGHTS, i, &item); i++)
    NEVER(!item.data || !item.bytes || !item.name[0]);
  const clv_graph *g = clv_module_graph(module);
  NEVER(g->output_node < 0 || g->output_node >= g->n_nodes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_wire_message_clear) clv_wire_load_request request = {0};
  clv_piece piece = {data, size};
  const clv_device cpu = {.name = "cpu", .backend = clv_backend_cpu()};
  clv_pool *pool;
  clv_module *module;
  clv_err err = {0};
  if (clv_wire_load_request_decode(&piece, 1, &request, &err) != CLV_OK) return 0;
  request.n_threads = 1;
  NEVER(clv_pool_new(QUOTA, 64, &pool, &err) != CLV_OK);
  clv_code code = clv_load_make_module(&request, &cpu, NULL, pool, NULL, &module, &err);
  if (code == CLV_OK) {
    check_loaded_module(module);
    clv_module_free(module);
  }
  NEVER(code != CLV_OK && !err.text[0]);
  NEVER(clv_pool_charged_bytes(pool));
  clv_pool_unref(pool);
  return 0;
}
