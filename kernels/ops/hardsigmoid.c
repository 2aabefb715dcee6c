/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

static REAL clamp_to_0_6(REAL x) { return x < 0 ? 0 : x > 6 ? 6 : x; }

POINTWISE(hardsigmoid, clamp_to_0_6(x + 3) / 6)
POINTWISE_BACKWARD(hardsigmoid, a->in[0], s > -3 && s < 3 ? dy / 6 : 0)

POINTWISE_ROW(hardsigmoid, .doc = "y = min(max(x + 3, 0), 6) / 6 (torch.nn.functional.hardsigmoid)",
              .torch_module = "Hardsigmoid()", .saved_for_dx = CLV_SAVE_IN0);
