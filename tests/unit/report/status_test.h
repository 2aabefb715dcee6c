/* SPDX-License-Identifier: Apache-2.0
 *
 * Defines a sample status of three workers that has an example of everything that `status` can
 * show: a pipeline that waits, another identity with a hostile name, a worker that does not answer
 * and a worker that has not answered yet.
 */
#ifndef CLEAVE_STATUS_TEST_H
#define CLEAVE_STATUS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/report/report.h"

#define HOSTILE_TEXT                             \
  "\033[2J\033]0;owned\007 a\rb\nc\x7f \xc2\x9b" \
  "31m \xe2\x80\xae end"

static clv_status_module status_modules[] = {{.index = 1,
                                              .name = "s1",
                                              .is_stage = true,
                                              .n_steps = 120,
                                              .n_forwards = 480,
                                              .n_backwards = 480,
                                              .calls_per_s = 7.5},
                                             {.index = 2,
                                              .n_steps = 3,
                                              .n_forwards = 9,
                                              .n_backwards = 8,
                                              .n_evals = 2,
                                              .calls_per_s = 0.25}};

static clv_status_link status_links[] = {{.peer = "",
                                          .bytes_in = 1u << 30,
                                          .bytes_out = 300u << 20,
                                          .bytes_in_per_s = 1.4e6,
                                          .bytes_out_per_s = 2e5,
                                          .round_trip_s = 0.0824,
                                          .frames_in = 3,
                                          .frames_out = 1,
                                          .tensors_in = 1,
                                          .missing_bytes_in = 2200000,
                                          .receiving_share = 0.6,
                                          .sending_share = 0.05,
                                          .transfer_bytes_in_per_s = 1.5e6,
                                          .transfer_bytes_out_per_s = 1.6e6,
                                          .waiting_share = 0.71,
                                          .waits_per_s = 4},
                                         {.peer = "worker-2",
                                          .bytes_in = 12,
                                          .bytes_out = 5000,
                                          .missing_bytes_out = 131072,
                                          .waiting_share = 0.05}};

static clv_status_session status_sessions[] = {{.name = "films",
                                                .identity = "spiffe://example.net/master",
                                                .id = "00112233445566778899aabbccddeeff",
                                                .epoch = 2,
                                                .age_s = 754,
                                                .is_attached = true,
                                                .n_contexts = 2,
                                                .n_values = 14,
                                                .n_kept_references = 1,
                                                .n_used_references = 2,
                                                .n_pending_references = 4,
                                                .n_waiting_calls = 3,
                                                .n_late_frames = 5,
                                                .memory = 310u << 20,
                                                .memory_limit = (uint64_t)64 << 30,
                                                .busy_share = 0.21,
                                                .idle_share = 0.77,
                                                .core_wait_share = 0.02,
                                                .n_modules = 1,
                                                .n_links = 2,
                                                .modules = status_modules,
                                                .links = status_links,
                                                .last_error = {"module 1: no memory", 12.4}},
                                               {.name = HOSTILE_TEXT,
                                                .identity = HOSTILE_TEXT,
                                                .id = "ff112233445566778899aabbccddeeff",
                                                .epoch = 1,
                                                .age_s = 9,
                                                .is_attached = true,
                                                .memory_limit = 1,
                                                .busy_share = 0.96,
                                                .idle_share = 0.04,
                                                .n_modules = 1,
                                                .modules = status_modules + 1,
                                                .last_error = {HOSTILE_TEXT, 0.2}}};

static clv_status_worker status_workers[] = {
    {.name = "worker-1",
     .address = "10.0.0.2:7443",
     .has_outcome = true,
     .own_name = "gpu-a",
     .software = "cleave 0.1.0",
     .device = "cpu",
     .isa = "avx512_core",
     .protocol_version = 2,
     .n_cores = 16,
     .sees_all = true,
     .uptime_s = 8040,
     .interval_s = 1,
     .is_draining = true,
     .resident_bytes = 1500u << 20,
     .memory = 1200u << 20,
     .session_limit = (uint64_t)64 << 30,
     .n_open_sessions = 5,
     .max_sessions = 8,
     .n_connections = 6,
     .max_connections = 16,
     .n_omitted_sessions = 1,
     .n_handshake_failures = 3,
     .has_certificate = true,
     .certificate_days = 5.5,
     .last_error = {"session films was refused: 8 sessions are open for this identity", 3661},
     .n_sessions = 2,
     .sessions = status_sessions},
    {.name = "worker-2",
     .address = "10.0.0.3:7443",
     .has_outcome = true,
     .error = "10.0.0.3:7443: nobody listens there",
     .fix = "is cleave-worker running there? `cleave-master doctor films.yaml` tries each step"},
    {.name = "worker-3", .address = "10.0.0.4:7443"}};

static const clv_status_view a_status = {
    .title = "films", .clock = "19:42:07", .n_workers = 3, .workers = status_workers};

#endif
