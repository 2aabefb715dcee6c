/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies from one backend's memory to another's, on one device or between two. The host does not
 * wait, because the streams wait for each other. If two devices are not connected, the driver
 * copies through host memory.
 */
#include "kernels/cuda/gpu_int.h"

/* Orders the work issued to `late` from now on after the work issued to `early` so far. The event
 * belongs to the device on which it is recorded. Freeing an event does not end a wait for it. */
static clv_code make_stream_wait(const clv_gpu *early, const clv_gpu *late, clv_err *err) {
  const clv_vendor *v = early->vendor;
  clv_cuda_event *e;
  CLV_TRY(v->event_new(early->device, false, &e, err));
  clv_code code = v->event_record(e, early->stream, err);
  if (code == CLV_OK) code = v->stream_wait(late->stream, e, err);
  v->event_free(e);
  return code;
}

clv_code clv_gpu_copy_from(const clv_backend *b, void *dst, const clv_backend *from,
                           const void *src, size_t bytes, clv_err *err) {
  const clv_gpu *to = b->private_data, *of = from->private_data;
  const clv_vendor *v = to->vendor;
  if (!bytes) return CLV_OK;
  CLV_TRY(make_stream_wait(of, to, err));
  if (of->device == to->device)
    CLV_TRY(v->copy(to->stream, dst, src, bytes, err));
  else
    CLV_TRY(v->copy_peer(to->stream, dst, to->device, src, of->device, bytes, err));
  /* makes later work of the source, such as freeing the memory, wait for the copy */
  return make_stream_wait(to, of, err);
}
