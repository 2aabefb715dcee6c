/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

static REAL clamp_to_0_6(REAL x) { return x < 0 ? 0 : x > 6 ? 6 : x; }

/* The slope is 0 at x = -3 and 1 at x = 3, as in PyTorch 2. PyTorch 1 had the slopes -0.5 and
 * 1.5. */
POINTWISE(hardswish, x *clamp_to_0_6(x + 3) / 6)
POINTWISE_BACKWARD(hardswish, a->in[0], s <= -3 ? 0 : s < 3 ? dy * (s / 3 + (REAL)0.5) : dy)

POINTWISE_ROW(hardswish, .doc = "y = x min(max(x + 3, 0), 6) / 6 (torch.nn.functional.hardswish)",
              .torch_module = "Hardswish()", .maps_zero_to_zero = true,
              .saved_for_dx = CLV_SAVE_IN0);
