/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends states of the daemon to systemd by the protocol of sd_notify(3): datagrams of NAME=value
 * lines to the socket $NOTIFY_SOCKET, which is a path or, after '@', the name of an abstract
 * socket.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "worker/worker_int.h"

enum { MAX_STATUS_LEN = 160, STATUS_INTERVAL_MS = 1000 };

static uint64_t now_ms(void) { return clv_now_ns() / 1000000u; }

/* Converts $NOTIFY_SOCKET to a socket address. False: the variable is not set, or is no socket
 * name. */
static bool get_notify_address(struct sockaddr_un *ret, socklen_t *ret_len) {
  const char *name = getenv("NOTIFY_SOCKET");
  size_t n = name ? strlen(name) : 0;
  if (n < 2 || n >= sizeof ret->sun_path || (name[0] != '/' && name[0] != '@')) return false;
  *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
  memcpy(ret->sun_path, name, n);
  if (name[0] == '@') ret->sun_path[0] = '\0';
  *ret_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (name[0] == '/'));
  return true;
}

/* Sends a datagram to systemd, if $NOTIFY_SOCKET is set. */
static void send_text(const char *text) {
  struct sockaddr_un to;
  socklen_t len;
  if (!get_notify_address(&to, &len)) return;
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  ssize_t n_sent = sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&to, len);
  if (n_sent < 0) clv_log(CLV_LOG_DEBUG, "could not send to the service manager: %s", text);
  close(fd);
}

/* Status line that was sent last, and the monotonic time when it was sent, ms. */
static struct {
  char text[MAX_STATUS_LEN];
  uint64_t sent_ms;
} last_status;

static void send_with_number(const char *prefix, unsigned long long value, const char *suffix) {
  char text[256];
  snprintf(text, sizeof text, "%s%llu%s", prefix, value, suffix);
  send_text(text);
}

void clv_sd_notify_ready(unsigned port) {
  last_status.text[0] = '\0'; /* the READY message replaces the status line */
  send_with_number("READY=1\nSTATUS=listening on port ", port, "");
}

/* Reports that a reload begins, with the monotonic time, which systemd needs for units with
 * Type=notify-reload. */
void clv_sd_notify_reloading(void) {
  send_with_number("RELOADING=1\nMONOTONIC_USEC=", clv_now_ns() / 1000u, "");
}

/* Reports that the daemon stops. Extends the time that systemd waits for its end, because the
 * unit's TimeoutStopSec does not include drain_timeout. */
void clv_sd_notify_stopping(uint64_t drain_timeout_ms) {
  send_with_number("STOPPING=1\nEXTEND_TIMEOUT_USEC=", (drain_timeout_ms + 10000) * 1000u,
                   "\nSTATUS=draining");
}

void clv_sd_notify_status(const char *fmt, ...) {
  char new_text[MAX_STATUS_LEN], text[MAX_STATUS_LEN + 8];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(new_text, sizeof new_text, fmt, ap);
  va_end(ap);
  if (strcmp(new_text, last_status.text) == 0 ||
      now_ms() - last_status.sent_ms < STATUS_INTERVAL_MS)
    return;
  memcpy(last_status.text, new_text, sizeof new_text);
  last_status.sent_ms = now_ms();
  snprintf(text, sizeof text, "STATUS=%s", new_text);
  send_text(text);
}

/* Returns the time in ms within which systemd expects a keep-alive; 0: systemd expects none of this
 * process. */
static uint64_t get_watchdog_interval_ms(void) {
  const char *watchdog_usec = getenv("WATCHDOG_USEC"), *watchdog_pid = getenv("WATCHDOG_PID");
  if (!watchdog_usec ||
      (watchdog_pid && strtoull(watchdog_pid, NULL, 10) != (unsigned long long)getpid()))
    return 0;
  return strtoull(watchdog_usec, NULL, 10) / 1000u;
}

void clv_sd_notify_alive(void) {
  static uint64_t last_sent_ms;
  uint64_t watchdog_interval_ms = get_watchdog_interval_ms(), time_ms = now_ms();
  if (!watchdog_interval_ms || time_ms - last_sent_ms < watchdog_interval_ms / 2) return;
  last_sent_ms = time_ms;
  send_text("WATCHDOG=1");
}
