/* SPDX-License-Identifier: Apache-2.0
 *
 * A layer whose weights are shared by many positions reads columns: a channel, or one value of each
 * window of it. A column that has the same places at all positions is a constant of the record: as
 * a bias does, it shifts the outputs of all positions and hides what differs among them.
 */
#include <string.h>

#include "master/reach/reach_int.h"

/* Indexes along an axis that are as far apart as this, or a multiple, are read by one weight at
 * several positions; 0: the axis has no positions, and a weight of its own reads each index. */
static int64_t distance_of(const reach_step *s, int axis) {
  for (int i = 0; i < s->relation->n; i++) {
    const reach_axis *a = &s->relation->axis[i];
    if (a->in != axis || a->kind == REACH_BLOCKS || a->kind == REACH_FIXED) continue;
    if (a->kind != REACH_UP_TO && s->to.dim[a->out] < 2) return 0;
    return a->kind == REACH_WINDOW ? a->stride : 1;
  }
  return 0;
}

/* The column of an element: which of the values that are no positions, and which of a window. */
typedef struct reach_columns {
  int64_t distance[CLV_MAX_RANK], extent[CLV_MAX_RANK];
} reach_columns;

static size_t count_columns(const reach_step *s, reach_columns *ret) {
  size_t n = 1;
  for (int i = 0; i < s->from->shape.rank; i++) {
    int64_t kept = s->from->kept[i];
    ret->distance[i] = distance_of(s, i);
    ret->extent[i] = ret->distance[i] ? CLV_MIN(ret->distance[i], kept) : kept;
    n *= (size_t)ret->extent[i];
  }
  return n;
}

static size_t column_of(const reach_columns *c, const int64_t *index, int rank) {
  int64_t at = 0;
  for (int i = 0; i < rank; i++)
    at = at * c->extent[i] + (c->distance[i] ? index[i] % c->extent[i] : index[i]);
  return (size_t)at;
}

/* Elements that one stands for, at different positions of a column. */
static int64_t copies_of(const reach_step *s, const reach_columns *c) {
  int64_t n = 1;
  for (int i = 0; i < s->from->shape.rank; i++)
    if (c->distance[i] && s->from->kept[i] == 1)
      n *= (s->from->shape.dim[i] - 1) / c->distance[i] + 1;
  return n;
}

typedef struct reach_column {
  uint32_t set; /* of its elements that have any */
  int64_t n;    /* that do */
  bool varies;
} reach_column;

static void look_at(const reach_step *s, const reach_columns *c, size_t n_columns,
                    reach_column *all) {
  int64_t index[CLV_MAX_RANK] = {0}, copies = copies_of(s, c);
  for (size_t i = 0, n = reach_value_count(s->from); i < n; i++) {
    reach_column *own = &all[column_of(c, index, s->from->shape.rank)];
    reach_element e = s->from->element[i];
    if (reach_is_path(e)) {
      own->varies |= own->n && reach_set_of(e) != own->set;
      own->set = reach_set_of(e);
      own->n += copies;
    }
    reach_next(index, s->from->kept, s->from->shape.rank);
  }
  for (size_t i = 0; i < n_columns; i++) all[i].varies |= all[i].n < 2;
}

/* What has become of the places is kept, since known weights stay known. */
static void leave_out(const reach_step *s, const reach_columns *c, const reach_column *all,
                      reach_value *ret) {
  int64_t index[CLV_MAX_RANK] = {0};
  for (size_t i = 0, n = reach_value_count(ret); i < n; i++) {
    reach_element e = s->from->element[i];
    bool out = reach_is_path(e) && !all[column_of(c, index, ret->shape.rank)].varies;
    ret->element[i] = out ? reach_made(REACH_EMPTY, e & REACH_FLAGS) : e;
    reach_next(index, ret->kept, ret->shape.rank);
  }
}

clv_code reach_varying(reach_step *s, reach_value *ret, clv_err *err) {
  reach_columns c;
  bool vary = false, stay = false;
  size_t n = count_columns(s, &c);
  CLV_AUTO(clv_freep) reach_column *all = NULL;
  if (n == 1) return CLV_OK;
  CLV_TRY(clv_alloc(n, sizeof *all, &all, err));
  look_at(s, &c, n, all);
  for (size_t i = 0; i < n; i++) {
    vary |= all[i].varies && all[i].n;
    stay |= !all[i].varies;
  }
  if (!vary || !stay) return CLV_OK;
  *ret = (reach_value){.shape = s->from->shape, .siblings = s->from->siblings};
  memcpy(ret->kept, s->from->kept, sizeof ret->kept);
  CLV_TRY(reach_value_alloc(ret, err));
  leave_out(s, &c, all, ret);
  (void)reach_pays(s->pool, 2 * reach_value_count(ret));
  return CLV_OK;
}
