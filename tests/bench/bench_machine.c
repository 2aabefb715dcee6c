/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints what the CPU backend computes with on this machine, as one line of JSON: instruction set,
 * libraries, and why it refuses bf16 ("": it does not refuse it).
 *
 * usage: bench_machine
 */
#include "kernels/kernels.h"
#include "tests/bench/bench_int.h"

int main(void) {
  const clv_backend *cpu = clv_backend_cpu();
  clv_err why = {0};
  bool has_bf16 = cpu->check_bf16(cpu, &why) == CLV_OK;
  printf("{\"isa\": \"%s\", \"libraries\": \"%s\", \"lacks_bf16\": \"%s\"}\n", clv_backend_isa(cpu),
         clv_backend_libraries(cpu), has_bf16 ? "" : why.text);
  return 0;
}
