/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds data of identities that are or were in `allow`, and of peers, by their names.
 */
#include <string.h>

#include "worker/service/service_int.h"

clv_member *clv_service_find_member(clv_service *v, const char *uri) {
  for (size_t i = 0; i < v->n_members; i++)
    if (strcmp(v->members[i]->identity, uri) == 0) return v->members[i];
  return NULL;
}

clv_link_traffic_total *clv_service_find_traffic_total(clv_service *v, const char *peer) {
  for (size_t i = 0; i < v->n_traffic_totals; i++)
    if (strcmp(v->traffic_totals[i]->peer_name, peer) == 0) return v->traffic_totals[i];
  return NULL;
}

uint64_t clv_service_receive_window(clv_service *s, const char *uri) {
  pthread_mutex_lock(&s->lock);
  const clv_member *m = clv_service_find_member(s, uri);
  uint64_t bytes = m ? m->receive_window_bytes : 0;
  pthread_mutex_unlock(&s->lock);
  /* 0: the identity has sent no Hello yet */
  return bytes ? bytes : clv_wire_limits_default().credit_bytes;
}

uint32_t clv_service_protocol(clv_service *s, const char *uri) {
  pthread_mutex_lock(&s->lock);
  const clv_member *m = clv_service_find_member(s, uri);
  uint32_t protocol = m ? m->protocol : 0;
  pthread_mutex_unlock(&s->lock);
  return protocol ? protocol : CLV_WIRE_PROTOCOL;
}
