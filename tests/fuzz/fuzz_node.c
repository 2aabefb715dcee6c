/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes a worker's node between its master and another worker, both hostile. The input is a list
 * of frames as they arrive over a link, each after a byte that says from whom and on which lane,
 * and after its length in two bytes. The checksums of tensors inside a frame are corrected, because
 * a frame with a wrong checksum is refused before anything else is read. Whatever arrives, the node
 * neither crashes nor leaks memory.
 */
#include "tests/fuzz/fuzz_node.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  conversation c = {0};
  begin_conversation(&c, (clv_executor){0});
  while (size >= 3) {
    size_t len = CLV_MIN(data[1] | (size_t)data[2] << 8, size - 3);
    deliver_frame(&c, data[0], data + 3, len);
    if (!(data[0] & 128)) clv_node_run_until(c.node, 0);
    if (data[0] & 64) clv_node_tick(c.node);
    data += 3 + len;
    size -= 3 + len;
  }
  clv_node_run_until(c.node, 0);
  end_conversation(&c);
  return 0;
}
