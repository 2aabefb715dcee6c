/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions shared by the commands of cleave-worker.
 */
#ifndef CLEAVE_WORKER_INT_H
#define CLEAVE_WORKER_INT_H

#include <stdint.h>

#include "common/base/cli/cli.h"
#include "common/model/config/config.h"
#include "worker/service/service.h"

typedef struct clv_worker_arguments {
  clv_cli_line line;       /* the parsed command line; must be the first member */
  const char *config_path; /* path of worker.yaml; NULL: not given */
  clv_cli_list sets;       /* texts KEY=VALUE that override keys of worker.yaml */
  bool checks_only;        /* `serve` checks the configuration and ends */
  bool prints_json;
} clv_worker_arguments;

/* runs `cleave-worker serve` (serve.c) */
int clv_cmd_serve(void *args);
/* runs `cleave-worker check` (serve.c) */
int clv_cmd_check(void *args);

/* ---- devices of the host (devices.c) --------------------------------------------------------- */

/* runs `cleave-worker devices` */
int clv_cmd_devices(void *args);
/* Checks that the device exists which worker.yaml's key `device` names. If the key is `auto` and
 * there is only the processor, logs why. */
clv_code clv_worker_check_device(const clv_worker_config *c, clv_err *err) CLV_USE_RESULT;

enum { MAX_CUDA_DEVICES = 16 };

/* The open NVIDIA devices of worker.yaml. */
typedef struct clv_worker_devices {
  const struct clv_cuda_library *cuda;     /* library that opened the devices; NULL: none is open */
  clv_backend *backends[MAX_CUDA_DEVICES]; /* backend of each device, [n_backends] */
  size_t n_backends;
} clv_worker_devices;

/* As clv_worker_check_device, but also opens the devices. An open device uses host memory, so only
 * the daemon opens devices. */
clv_code clv_worker_devices_open(const clv_worker_config *c, clv_worker_devices *ret,
                                 clv_err *err) CLV_USE_RESULT;
void clv_worker_devices_closep(clv_worker_devices *d);

/* ---- configuration and reloads (reload.c) ---------------------------------------------------- */

/* Reads worker.yaml with the overrides of the command line and the environment. */
clv_code clv_worker_read_config(const clv_worker_arguments *a, clv_worker_config **ret,
                                clv_err *err) CLV_USE_RESULT;
/* Reads worker.yaml, the certificates and the revocation lists again and applies them.
 * start_config: the configuration at the start of the daemon, for settings that a reload cannot
 * change. Main thread. */
void clv_worker_reload(const clv_worker_arguments *a, clv_service *service,
                       const clv_worker_config *start_config);

/* Logs once a day that the revocation list is about to expire or has expired. The main thread calls
 * this periodically. */
void clv_worker_warn_crl_expiry(void);

/* ---- messages to systemd (notify.c) ---------------------------------------------------------- */

/* These functions send the daemon's state to systemd through the socket $NOTIFY_SOCKET. If that is
 * not set, they do nothing. A message that cannot be sent is not repeated, because a later message
 * supersedes it. Main thread. */
void clv_sd_notify_ready(unsigned port);
void clv_sd_notify_reloading(void);
void clv_sd_notify_stopping(uint64_t drain_timeout_ms);
/* Sends the status line that `systemctl status` shows, if the line has changed, at most once a
 * second. */
void clv_sd_notify_status(const char *fmt, ...) CLV_PRINTF(1, 2);
/* Sends a keep-alive to the watchdog, twice per $WATCHDOG_USEC. Call it in the main loop. */
void clv_sd_notify_alive(void);

#endif
