/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker's node between its master and another worker, who say anything: frames as they come over
 * a link, each behind a byte that says from whom and on which lane, and its length in two bytes.
 * Tensors that a frame carries itself have their checksum put right, or nothing would get past it.
 * Whatever comes, the node neither crashes nor keeps memory.
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
