/* SPDX-License-Identifier: Apache-2.0
 *
 * What the commands of cleave-worker share.
 */
#ifndef CLEAVE_WORKER_INT_H
#define CLEAVE_WORKER_INT_H

#include <stdint.h>

#include "common/base/cli/cli.h"
#include "common/model/config/config.h"
#include "worker/service/service.h"

typedef struct clv_worker_arguments {
  clv_cli_line line; /* first */
  const char *config;
  clv_cli_list sets;
  bool check_only, json;
} clv_worker_arguments;

/* serve.c */
int clv_cmd_serve(void *args);
int clv_cmd_check(void *args);

/* ---- devices.c ---- */

int clv_cmd_devices(void *args);
/* Whether what `device` names is there; where `auto` found nothing but the processor, the log says
 * why. */
clv_code clv_worker_check_device(const clv_worker_config *c, clv_err *err) CLV_USE_RESULT;

enum { MAX_CUDA_DEVICES = 16 };

/* Those beside the processor. */
typedef struct clv_worker_devices {
  const struct clv_cuda_library *cuda;
  clv_backend *list[MAX_CUDA_DEVICES];
  size_t n;
} clv_worker_devices;

/* The same, opened. A device that is started takes memory of the host: the daemon alone does it. */
clv_code clv_worker_devices_open(const clv_worker_config *c, clv_worker_devices *ret,
                                 clv_err *err) CLV_USE_RESULT;
void clv_worker_devices_closep(clv_worker_devices *d);

/* ---- reload.c ---- */

/* worker.yaml with what the command line and the environment say. */
clv_code clv_worker_read_config(const clv_worker_arguments *a, clv_worker_config **ret,
                                clv_err *err) CLV_USE_RESULT;
/* Everything is read again. `first`: of the start, for what a reload cannot change. Main thread. */
void clv_worker_reload(const clv_worker_arguments *a, clv_service *service,
                       const clv_worker_config *first);

/* Says once a day that the list of revoked certificates is about to end. Main thread, now and
 * then. */
void clv_worker_warn_crl_expiry(void);

/* ---- notify.c: what a service manager is told ------------------------------------------------ */

/* Under systemd ($NOTIFY_SOCKET) these say how the daemon does; elsewhere they do nothing. A
 * message that cannot be sent is not tried again: the next one says more. Main thread. */
void clv_sd_notify_ready(unsigned port);
void clv_sd_notify_reloading(void);
void clv_sd_notify_stopping(uint64_t at_most_ms);
/* The line that `systemctl status` shows; sent when it has changed, at most once a second. */
void clv_sd_notify_status(const char *fmt, ...) CLV_PRINTF(1, 2);
/* The main loop is alive: tells the watchdog twice per $WATCHDOG_USEC. */
void clv_sd_notify_alive(void);

#endif
