/* SPDX-License-Identifier: Apache-2.0
 *
 * libcleave for the rest of this tree: the public functions, and its objects made from this tree's own
 * types instead of texts.
 */
#ifndef CLEAVE_API_H
#define CLEAVE_API_H

#include "common/config/config.h"
#include "common/graph/graph.h"
#include "master/api/cleave.h"

/* As cleave_open. The configuration is borrowed and must outlive the runtime. */
cleave_status cleave_open_config(const clv_session_config *config, const cleave_options *options,
                                 cleave_runtime **ret_runtime, cleave_error *error) CLEAVE_RESULT;

/* A copy; layers keep their numbers. */
cleave_status cleave_graph_of(const clv_graph *graph, cleave_graph **ret_graph,
                              cleave_error *error) CLEAVE_RESULT;

#endif
