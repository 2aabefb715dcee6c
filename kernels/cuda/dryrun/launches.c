/* SPDX-License-Identifier: Apache-2.0
 *
 * Stubs for the launchers in .cu files. A program that only makes dry runs is linked with the stubs
 * in place of the .cu files, and calls none of them.
 */
#include <stdlib.h>

#include "common/base/base.h"

#define LAUNCH(name)   \
  clv_code name(void); \
  clv_code name(void) { abort(); }
#include "cuda_launches.def"
#undef LAUNCH
