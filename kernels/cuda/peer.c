/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies from one backend's memory to another's, on one device or between two. The host does not
 * wait, because the streams wait for each other. If two devices are not connected, the driver
 * copies through host memory.
 */
#include "kernels/cuda/gpu_int.h"

/* Makes the work issued to the stream of `waiter` from now on wait for the work issued to the
 * stream of `signaler` so far. The event may be freed before the wait is over. */
static clv_code make_stream_wait(const clv_gpu *signaler, const clv_gpu *waiter, clv_err *err) {
  const clv_vendor *v = signaler->vendor;
  clv_cuda_event *e;
  CLV_TRY(v->event_new(signaler->device, false, &e, err));
  clv_code code = v->event_record(e, signaler->stream, err);
  if (code == CLV_OK) code = v->stream_wait(waiter->stream, e, err);
  v->event_free(e);
  return code;
}

clv_code clv_gpu_copy_from(const clv_backend *b, void *dst, const clv_backend *from,
                           const void *src, size_t bytes, clv_err *err) {
  const clv_gpu *dst_gpu = b->private_data, *src_gpu = from->private_data;
  const clv_vendor *v = dst_gpu->vendor;
  if (!bytes) return CLV_OK;
  CLV_TRY(make_stream_wait(src_gpu, dst_gpu, err));
  if (src_gpu->device == dst_gpu->device)
    CLV_TRY(v->copy(dst_gpu->stream, dst, src, bytes, err));
  else
    CLV_TRY(v->copy_peer(dst_gpu->stream, dst, dst_gpu->device, src, src_gpu->device, bytes, err));
  /* later work of the source, such as freeing the memory, must wait for the copy */
  return make_stream_wait(dst_gpu, src_gpu, err);
}
