/* SPDX-License-Identifier: Apache-2.0
 *
 * Sending, dialling and closing of links. The engine calls clv_link_send for each packet; the owner
 * of a session calls clv_link_open (link_rpc.c), which calls clv_link_start and
 * clv_link_wait_attached, and clv_link_close.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/link/link_int.h"

clv_code clv_link_send(clv_link *l, clv_packet *p, clv_err *err) {
  clv_code code = CLV_OK;
  if (l->events.check_send && (p->frame.n_tensors || clv_frame_is_failure(&p->frame)))
    code = l->events.check_send(l->events.user, l, p, err);
  if (code == CLV_OK) return clv_send_queue_send(l->send_queue, p, err);
  clv_packet_free(p);
  return code;
}

void clv_link_flush(clv_link *l) { clv_frame_writer_flush(l->writer); }

/* ---- dialling a link ------------------------------------------------------------------------- */

/* Copies the contents of ATTACH, because each later connection of a lane sends them again. */
static void copy_attach_contents(clv_link *l, const clv_link_dial *d) {
  l->dial_options = *d;
  l->dial_options.n_bulk_lanes = CLV_MIN(d->n_bulk_lanes, (uint32_t)CLV_WIRE_LANES);
  l->dial_options.peer_address = l->dial_options.peer_identity = NULL;
  l->dial_options.pem = (clv_rpc_pem){0};
  if (!d->session_owner) return;
  snprintf(l->session_owner, sizeof l->session_owner, "%s", d->session_owner);
  l->dial_options.session_owner = l->session_owner;
}

static clv_code dial_all_lanes(clv_link *l, clv_err *err) {
  uint32_t n_lanes = 1 + l->dial_options.n_bulk_lanes;
  clv_send_queue_set_lanes(l->send_queue, n_lanes);
  for (uint32_t i = 0; i < n_lanes; i++) CLV_TRY(clv_link_dial_lane(l, i, 0, err));
  return CLV_OK;
}

clv_code clv_link_start(const clv_link_options *options, const clv_link_dial *dial,
                        const clv_dialler *dialler, clv_link **ret, clv_err *err) {
  clv_link *l;
  clv_code code = clv_link_new(options, &l, err);
  if (code != CLV_OK) {
    if (dialler->hang_up) dialler->hang_up(dialler->user);
    return code;
  }
  l->dialler = *dialler;
  copy_attach_contents(l, dial);
  code = dial_all_lanes(l, err);
  if (code != CLV_OK) {
    if (clv_link_has_violation(l)) code = err->code = CLV_BAD_ANSWER;
    clv_link_close(l);
    clv_link_unref(l);
    return code;
  }
  *ret = l;
  return CLV_OK;
}

bool clv_link_is_attached(clv_link *l) {
  pthread_mutex_lock(&l->lock);
  bool is_open = l->state == CLV_LINK_OPEN || l->state == CLV_LINK_MENDING;
  pthread_mutex_unlock(&l->lock);
  return is_open;
}

clv_code clv_link_wait_attached(clv_link *l, unsigned timeout_ms, clv_err *err) {
  uint64_t deadline = clv_clock_now(&l->clock) + (uint64_t)timeout_ms * 1000000u;
  clv_code code = CLV_OK;
  pthread_mutex_lock(&l->lock);
  while (l->state < CLV_LINK_OPEN && clv_link_wait_unless_stopped(l, deadline)) continue;
  if (l->state >= CLV_LINK_ENDING)
    code = clv_fail(err, l->close_code, "%s", l->close_text);
  else if (l->state < CLV_LINK_OPEN && clv_rpc_check_cancel_hook(err) != CLV_OK)
    code = err->code;
  else if (l->state < CLV_LINK_OPEN)
    code = clv_fail(err, CLV_DEADLINE, "%s did not attach the session within %u ms", l->peer_name,
                    timeout_ms);
  pthread_mutex_unlock(&l->lock);
  if (code != CLV_OK && clv_link_has_violation(l)) code = err->code = CLV_BAD_ANSWER;
  return code;
}

/* ---- closing a link -------------------------------------------------------------------------- */

/* Waits until all lanes have ended, at most `ms`. False: some have not. */
static bool wait_for_lanes(clv_link *l, unsigned ms) {
  uint64_t deadline = clv_clock_now(&l->clock) + (uint64_t)ms * 1000000u;
  pthread_mutex_lock(&l->lock);
  while (l->n_lanes_with_stream && clv_link_wait_unless_stopped(l, deadline)) continue;
  bool have_all_ended = !l->n_lanes_with_stream;
  pthread_mutex_unlock(&l->lock);
  return have_all_ended;
}

static void end_lanes(clv_link *l) {
  if (wait_for_lanes(l, CLOSE_TIMEOUT_MS)) return;
  clv_frame_writer_cancel_all_streams(l->writer, CLV_CANCELLED, "closed");
  if (!wait_for_lanes(l, CANCEL_TIMEOUT_MS))
    clv_frame_writer_cancel_all_streams(l->writer, CLV_CANCELLED, "closed");
}

void clv_link_begin_close(clv_link *l) {
  if (l) clv_link_end(l, CLV_OK, "closed");
}

/* Cancels the lanes of a peer that keeps sending after our half close, because no lane may run when
 * the caller frees the runtime. */
void clv_link_close(clv_link *l) {
  if (!l) return;
  clv_link_begin_close(l);
  clv_link_stop_redials(l);
  if (!l->clock.now_ns) end_lanes(l);
  clv_link_hang_up(l);
}
