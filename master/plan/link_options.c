/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses --link and --speed, which describe a network that `plan` does not connect to.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/plan/plan.h"

enum { NAME_BYTES = 72 }; /* bytes of a worker's name, or of two names joined by a plus sign */
static const double DEFAULT_RTT_MS = 1, DEFAULT_MBIT_PER_S = 1000;

static clv_link_estimate make_link_estimate(double rtt_ms, double mbit_per_s, bool is_given) {
  return (clv_link_estimate){
      .latency_s = rtt_ms / 2e3, .bytes_per_s = mbit_per_s * 1e6 / 8, .is_given = is_given};
}

/* Parses digits with an optional fraction. True if the number is from min to max; *end: the
 * character after the number. */
static bool parse_number(const char *text, double min, double max, double *ret, const char **end) {
  char *number_end;
  if (strspn(text, "0123456789.") == 0) return false;
  *ret = strtod(text, &number_end);
  *end = number_end;
  return number_end <= text + strspn(text, "0123456789.") && *ret >= min && *ret <= max;
}

/* Sets *ret_place to the index of the worker called `name`. If permits_master, `name` may be
 * "master", whose index is -1. */
static clv_code find_named_place(const clv_session_config *c, const char *option, const char *name,
                                 bool permits_master, int *ret_place, clv_err *err) {
  CLV_AUTO(clv_freep) const char **names = NULL;
  CLV_TRY(clv_alloc(c->n_workers + 1, sizeof(char *), &names, err));
  *ret_place = -1;
  if (permits_master && strcmp(name, "master") == 0) return CLV_OK;
  for (size_t i = 0; i < c->n_workers; i++) {
    names[i] = c->workers[i].name;
    if (strcmp(name, names[i]) != 0) continue;
    *ret_place = (int)i;
    return CLV_OK;
  }
  const char *similar_name = clv_did_you_mean(name, names, c->n_workers);
  return clv_fail(err, CLV_INVALID, "%s: the session has no worker '%s'%s%s%s", option, name,
                  similar_name ? ", did you mean '" : "", similar_name ? similar_name : "",
                  similar_name ? "'?" : "");
}

/* Splits "name=" off the front of an option's argument. */
static clv_code split_option(const char *option, const char *arg, const char *option_form,
                             char name[NAME_BYTES], const char **ret_value, clv_err *err) {
  const char *equals_sign = strchr(arg, '=');
  if (!equals_sign || equals_sign == arg || equals_sign - arg >= NAME_BYTES)
    return clv_fail(err, CLV_INVALID, "%s %.80s: write it as %s", option, arg, option_form);
  snprintf(name, NAME_BYTES, "%.*s", (int)(equals_sign - arg), arg);
  *ret_value = equals_sign + 1;
  return CLV_OK;
}

static clv_code parse_link(const clv_session_config *c, const char *arg, clv_link_estimates *l,
                           clv_err *err) {
  static const char option_form[] = "WORKER=RTT_MS:MBIT, as in w1=20:1000";
  char name[NAME_BYTES], *other_name;
  const char *at, *end;
  double rtt_ms, mbit_per_s;
  int place, other_place = -1;
  CLV_TRY(split_option("--link", arg, option_form, name, &at, err));
  if ((other_name = strchr(name, '+'))) *other_name++ = '\0';
  CLV_TRY(find_named_place(c, "--link", name, false, &place, err));
  if (other_name) CLV_TRY(find_named_place(c, "--link", other_name, false, &other_place, err));
  if (place == other_place)
    return clv_fail(err, CLV_INVALID, "--link %.80s: names one worker twice: name two workers",
                    arg);
  if (!parse_number(at, 0, 60000, &rtt_ms, &end) || *end != ':' ||
      !parse_number(end + 1, 1e-3, 1e6, &mbit_per_s, &end) || *end)
    return clv_fail(err, CLV_INVALID,
                    "--link %.80s: '%.40s' is no round trip of 0 to 60000 ms and rate of 0.001 to "
                    "1000000 Mbit/s; write it as %s",
                    arg, at, option_form);
  clv_link_estimate *to = other_name ? &l->hops[(size_t)CLV_MIN(place, other_place) * l->n +
                                                (size_t)CLV_MAX(place, other_place)]
                                     : &l->worker_links[place];
  *to = make_link_estimate(rtt_ms, mbit_per_s, true);
  return CLV_OK;
}

static clv_code parse_speed(const clv_session_config *c, const char *arg, clv_link_estimates *l,
                            clv_err *err) {
  static const char option_form[] = "NODE=FACTOR, as in w1=8";
  char name[NAME_BYTES];
  const char *at, *end;
  double speed_factor;
  int node;
  CLV_TRY(split_option("--speed", arg, option_form, name, &at, err));
  CLV_TRY(find_named_place(c, "--speed", name, true, &node, err));
  if (!parse_number(at, 1e-3, 1e6, &speed_factor, &end) || *end)
    return clv_fail(err, CLV_INVALID,
                    "--speed %.80s: '%.40s' is no factor of 0.001 to 1000000; write it as %s", arg,
                    at, option_form);
  l->speeds[node < 0 ? l->n : (size_t)node] = speed_factor;
  return CLV_OK;
}

/* Sets the estimate of each direct hop that no option gives: the longer latency and the smaller
 * bandwidth of the two workers' links to the master. */
static void set_default_hops(clv_link_estimates *l) {
  for (size_t i = 0; i < l->n; i++)
    for (size_t k = i + 1; k < l->n; k++) {
      clv_link_estimate *hop = &l->hops[i * l->n + k];
      if (hop->is_given) continue;
      hop->latency_s = fmax(l->worker_links[i].latency_s, l->worker_links[k].latency_s);
      hop->bytes_per_s = fmin(l->worker_links[i].bytes_per_s, l->worker_links[k].bytes_per_s);
    }
}

static void note_link(clv_link_estimates *l, const char *name, const clv_link_estimate *link) {
  clv_bytes_printf(&l->notes, "%s%s %.6g ms, %.9g Mbit/s%s", l->notes.len ? "; " : "", name,
                   2e3 * link->latency_s, link->bytes_per_s * 8e-6,
                   link->is_given ? "" : " (assumed)");
}

static void note_links_and_speeds(const clv_session_config *c, clv_link_estimates *l) {
  char pair_name[160];
  for (size_t i = 0; i < l->n; i++) note_link(l, c->workers[i].name, &l->worker_links[i]);
  for (size_t i = 0; i < l->n * l->n; i++) {
    if (!l->hops[i].is_given) continue;
    snprintf(pair_name, sizeof pair_name, "%s+%s", c->workers[i / l->n].name,
             c->workers[i % l->n].name);
    note_link(l, pair_name, &l->hops[i]);
  }
  for (size_t i = 0; i <= l->n; i++)
    if (l->speeds[i] != 1)
      clv_bytes_printf(&l->notes, "%s%s computes %.4g times as fast as this machine",
                       l->notes.len ? "; " : "", i < l->n ? c->workers[i].name : "master",
                       l->speeds[i]);
}

static clv_code parse_options(const clv_session_config *c, const clv_run_options *o,
                              clv_link_estimates *l, clv_err *err) {
  l->n = c->n_workers;
  CLV_TRY(clv_alloc(l->n, sizeof *l->worker_links, &l->worker_links, err));
  CLV_TRY(clv_alloc(l->n * l->n, sizeof *l->hops, &l->hops, err));
  CLV_TRY(clv_alloc(l->n + 1, sizeof *l->speeds, &l->speeds, err));
  for (size_t i = 0; i < l->n; i++)
    l->worker_links[i] = make_link_estimate(DEFAULT_RTT_MS, DEFAULT_MBIT_PER_S, false);
  for (size_t i = 0; i <= l->n; i++) l->speeds[i] = 1;
  for (size_t i = 0; i < o->n_links; i++) CLV_TRY(parse_link(c, o->links[i], l, err));
  for (size_t i = 0; i < o->n_speeds; i++) CLV_TRY(parse_speed(c, o->speeds[i], l, err));
  set_default_hops(l);
  note_links_and_speeds(c, l);
  return CLV_OK;
}

clv_code clv_link_estimates_parse(const clv_session_config *c, const clv_run_options *o,
                                  clv_link_estimates **ret, clv_err *err) {
  CLV_AUTO(clv_link_estimates_freep) clv_link_estimates *l = NULL;
  CLV_TRY(clv_alloc(1, sizeof *l, &l, err));
  CLV_TRY(parse_options(c, o, l, err));
  *ret = clv_steal(&l);
  return CLV_OK;
}

void clv_link_estimates_freep(clv_link_estimates **l) {
  if (!*l) return;
  free((*l)->worker_links);
  free((*l)->hops);
  free((*l)->speeds);
  clv_bytes_done(&(*l)->notes);
  free(*l);
  *l = NULL;
}
