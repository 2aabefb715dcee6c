/* SPDX-License-Identifier: Apache-2.0
 *
 * Stubs for the launchers in .cu files, which are compiled only for devices. A program that only
 * prepares kernels in a dry run is linked with these stubs and calls none of them.
 */
#include <stdlib.h>

#include "common/base/base.h"

#define LAUNCH(name)   \
  clv_code name(void); \
  clv_code name(void) { abort(); }
#include "cuda_launches.def"
#undef LAUNCH
