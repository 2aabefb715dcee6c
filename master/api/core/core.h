/* SPDX-License-Identifier: Apache-2.0
 *
 * The core of libcleave, for master/api/extra (the functions that only programs use) and for the
 * simulation in tests. Has the records of contexts, values, modules and futures, and the functions
 * on them that take the lock or expect the caller to hold it.
 */
#ifndef CLEAVE_CORE_H
#define CLEAVE_CORE_H

#include "master/api/core/core_int.h"
#include "master/api/core/future_int.h"
#include "master/api/core/incarnations_int.h"
#include "master/api/core/module_int.h"
#include "master/api/core/state_requests_int.h"

#endif
