/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLEAVE_MODELS_INT_H
#define CLEAVE_MODELS_INT_H

#include "common/models/models.h"

/* Appends the layers of the session's named architecture; *layer counts them, *last is the node
 * they continue from and end at. */
clv_code clv_arch_layers(const clv_session_config *c, clv_graph *g, uint32_t *layer, int *last,
                         clv_err *err) CLV_USE_RESULT;

#endif
