/* SPDX-License-Identifier: Apache-2.0
 *
 * worker.yaml: loading (clv_worker_config_load, _parse), and the checks across keys.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/config/schema_int.h"

clv_code clv_worker_fail_at(const clv_worker_config *config, clv_config_pos pos, clv_err *err,
                            const char *fmt, ...) {
  va_list ap;
  clv_yaml_source source = {config->file, &config->overrides};
  va_start(ap, fmt);
  clv_code code = clv_yaml_source_vfail(&source, pos, err, fmt, ap);
  va_end(ap);
  return code;
}

/* Refuses a second entry of `allow` for the same identity, because it could silently widen the
 * rights that the first one gives. */
static clv_code check_allowed_identities(const clv_worker_config *c, clv_err *err) {
  for (size_t i = 0; i < c->n_allow; i++)
    for (size_t j = 0; j < i; j++)
      if (strcmp(c->allow[i].identity, c->allow[j].identity) == 0)
        return clv_worker_fail_at(c, c->allow[i].pos, err, "the identity '%s' is allowed twice",
                                  c->allow[i].identity);
  return CLV_OK;
}

static clv_code check_peers(const clv_worker_config *c, clv_err *err) {
  for (size_t i = 0; i < c->n_peers; i++)
    for (size_t j = 0; j < i; j++)
      if (strcmp(c->peers[i].name, c->peers[j].name) == 0)
        return clv_worker_fail_at(c, c->peers[i].pos, err, "two peers are called '%s'",
                                  c->peers[i].name);
  return CLV_OK;
}

static clv_code check_artifacts(const clv_worker_config *c, clv_err *err) {
  for (size_t i = 0; i < c->n_artifacts; i++)
    if (!c->artifacts[i].file == !c->artifacts[i].folder)
      return clv_worker_fail_at(c, c->artifacts[i].pos, err,
                                "artifact '%s' is a file or a folder: give one of them",
                                c->artifacts[i].name);
  return CLV_OK;
}

static clv_code check_cores(const clv_worker_config *c, clv_err *err) {
  for (size_t i = 0; i < c->cores.n; i++)
    if (c->cores.items[i] != (double)(int)c->cores.items[i])
      return clv_worker_fail_at(c, c->cores_pos, err, "cores are numbered by whole numbers, not %g",
                                c->cores.items[i]);
  return CLV_OK;
}

/* Checks that limits.lease is longer than limits.peer_timeout, so that the session still exists as
 * long as its silent master is not given up. */
static clv_code check_lease_and_timeout(const clv_worker_config *c, clv_err *err) {
  char lease[32], timeout[32];
  if (c->limits.lease_ms > c->limits.peer_timeout_ms) return CLV_OK;
  clv_duration_to_text(c->limits.lease_ms, lease);
  clv_duration_to_text(c->limits.peer_timeout_ms, timeout);
  return clv_worker_fail_at(c, c->limits.lease_pos, err,
                            "limits.lease of %s has to be longer than limits.peer_timeout, %s: "
                            "raise the one or lower the other",
                            lease, timeout);
}

/* Refuses the same port for `listen` and metrics.listen. Without this check, binding the second
 * port would fail with "address in use", which does not name the key of the first. */
static clv_code check_ports(const clv_worker_config *c, clv_err *err) {
  if (!c->metrics.listen || !clv_listen_addresses_overlap(c->listen, c->metrics.listen))
    return CLV_OK;
  return clv_worker_fail_at(c, c->metrics.listen_pos, err,
                            "metrics.listen %s takes the port of `listen`, %s; give it another, "
                            "such as 127.0.0.1:9101",
                            c->metrics.listen, c->listen);
}

void clv_worker_config_free(clv_worker_config *config) {
  if (!config) return;
  clv_schema_free_at(clv_worker_schema(), config);
  clv_text_list_clear(&config->overrides);
  free(config->file);
  free(config);
}

void clv_worker_config_freep(clv_worker_config **config) { clv_worker_config_free(*config); }

clv_code clv_worker_config_parse(const char *path, const char *text, size_t len,
                                 const clv_config_overrides *over, clv_worker_config **ret_config,
                                 clv_err *err) {
  CLV_AUTO(clv_worker_config_freep) clv_worker_config *c = NULL;
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  CLV_TRY(clv_strdup(path, &c->file, err));
  clv_yaml_source source = {c->file, &c->overrides};
  CLV_TRY(clv_config_build(clv_worker_schema(), &source, text, len, over, &c->overrides, c, err));
  CLV_TRY(check_allowed_identities(c, err));
  CLV_TRY(check_peers(c, err));
  CLV_TRY(check_artifacts(c, err));
  CLV_TRY(check_cores(c, err));
  CLV_TRY(check_ports(c, err));
  CLV_TRY(check_lease_and_timeout(c, err));
  *ret_config = clv_steal(&c);
  return CLV_OK;
}

clv_code clv_worker_config_load(const char *path, const clv_config_overrides *over,
                                clv_worker_config **ret_config, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_TRY(clv_file_read(path, CLV_CONFIG_MAX_BYTES, &text, err));
  return clv_worker_config_parse(path, text.data, text.len, over, ret_config, err);
}
