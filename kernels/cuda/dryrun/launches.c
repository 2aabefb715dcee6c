/* SPDX-License-Identifier: Apache-2.0
 *
 * Launchers stand in .cu files, which are compiled for a device alone. Whoever prepares kernels on
 * paper calls none of them: these take their names.
 */
#include <stdlib.h>

#include "common/base/base.h"

#define LAUNCH(name)   \
  clv_code name(void); \
  clv_code name(void) { abort(); }
#include "cuda_launches.def"
#undef LAUNCH
