/* SPDX-License-Identifier: Apache-2.0
 *
 * Certificates, and the files one starts with.
 */
#include <stdio.h>
#include <unistd.h>

#include "master/master_int.h"

static const char *folder(const arguments *a) { return a->dir ? a->dir : "certs"; }

/* OpenSSL without what it always has is not the person's mistake. */
static int fail(const clv_err *err) {
  return clv_exit_report(err->code == CLV_INTERNAL ? CLV_EXIT_INTERNAL : CLV_EXIT_FAILED, err);
}

int clv_cmd_certs_init(void *args) {
  const arguments *a = args;
  clv_err err;
  const char *dir = folder(a), *name = a->line.n_words ? a->line.words[0] : "Cleave CA";
  if (clv_tls_ca_init(dir, name, a->days ? (int)a->days : 3650, &err) != CLV_OK) return fail(&err);
  printf("%s/ca.pem and %s/ca.key made; keep ca.key inside the private network\n", dir, dir);
  return CLV_EXIT_OK;
}

int clv_cmd_certs_issue(void *args) {
  arguments *a = args;
  clv_err err;
  const char *dir = folder(a);
  clv_tls_issue_options o = {.ca_dir = dir,
                             .name = a->line.words[0],
                             .uris = &a->uri,
                             .n_uris = 1,
                             .dns = a->dns.items,
                             .n_dns = a->dns.n,
                             .ips = a->ips.items,
                             .n_ips = a->ips.n,
                             .days = a->days ? (int)a->days : 365,
                             .not_before_offset_s = -300,
                             .force = a->force};
  if (clv_tls_issue(&o, &err) != CLV_OK) return fail(&err);
  printf("%s/%s.pem and %s/%s.key made, identity %s\n", dir, o.name, dir, o.name, a->uri);
  return CLV_EXIT_OK;
}

int clv_cmd_certs_show(void *args) {
  const arguments *a = args;
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  if (clv_tls_show(a->line.words[0], &out, a->run.json, &err) != CLV_OK)
    return clv_exit_report(CLV_EXIT_DATA, &err);
  fputs(out.data, stdout);
  return CLV_EXIT_OK;
}

static int write_new(const char *path, clv_config_kind kind) {
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  if (access(path, F_OK) == 0) {
    clv_notice(CLV_LOG_ERROR, "failed", "%s is there already; nothing was written", path);
    return CLV_EXIT_FAILED;
  }
  if (clv_config_example(kind, &text, &err) != CLV_OK ||
      clv_file_write_durable(path, text.data, text.len, 0644, &err) != CLV_OK)
    return fail(&err);
  printf("%s written\n", path);
  return CLV_EXIT_OK;
}

int clv_cmd_init(void *args) {
  (void)args;
  int code = write_new("session.yaml", CLV_CONFIG_SESSION);
  if (code == CLV_EXIT_OK) code = write_new("worker.yaml", CLV_CONFIG_WORKER);
  if (code == CLV_EXIT_OK)
    puts("next: cleave-master certs init; certs issue ...; then check, plan, doctor, train");
  return code;
}
