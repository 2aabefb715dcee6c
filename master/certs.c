/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands `certs init`, `certs issue`, `certs revoke` and `certs show`.
 */
#include <stdio.h>

#include "master/master_int.h"

static const char *certs_folder(const clv_master_arguments *a) { return a->dir ? a->dir : "certs"; }

/* Prints an error and returns the exit code of the command: CLV_EXIT_INTERNAL for CLV_INTERNAL,
 * such as a function that OpenSSL lacks, else CLV_EXIT_FAILED. */
static int report_error(const clv_err *err) {
  return clv_exit_report(err->code == CLV_INTERNAL ? CLV_EXIT_INTERNAL : CLV_EXIT_FAILED, err);
}

int clv_cmd_certs_init(void *args) {
  const clv_master_arguments *a = args;
  clv_err err;
  const char *dir = certs_folder(a), *name = a->line.n_words ? a->line.words[0] : CLV_CA_NAME;
  if (clv_tls_ca_init(dir, name, a->days ? (int)a->days : CLV_CA_DAYS, &err) != CLV_OK)
    return report_error(&err);
  printf("%s/ca.pem and %s/ca.key made; keep ca.key inside the private network\n", dir, dir);
  return CLV_EXIT_OK;
}

int clv_cmd_certs_issue(void *args) {
  clv_master_arguments *a = args;
  clv_err err;
  const char *dir = certs_folder(a);
  clv_tls_issue_options o = {.ca_dir = dir,
                             .cert_name = a->line.words[0],
                             .uris = &a->uri,
                             .n_uris = 1,
                             .dns_names = a->dns.items,
                             .n_dns_names = a->dns.n,
                             .ip_addresses = a->ips.items,
                             .n_ip_addresses = a->ips.n,
                             .validity_days = a->days ? (int)a->days : CLV_CERT_DAYS,
                             .not_before_offset_s = CLV_CERT_NOT_BEFORE_S,
                             .may_overwrite = a->is_forced};
  if (clv_tls_issue_cert(&o, &err) != CLV_OK) return report_error(&err);
  printf("%s/%s.pem and %s/%s.key made, identity %s\n", dir, o.cert_name, dir, o.cert_name, a->uri);
  return CLV_EXIT_OK;
}

int clv_cmd_certs_show(void *args) {
  const clv_master_arguments *a = args;
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  if (clv_tls_show_certs(a->line.words[0], &out, a->run.json, &err) != CLV_OK)
    return clv_exit_report(CLV_EXIT_DATA, &err);
  fputs(out.data, stdout);
  return CLV_EXIT_OK;
}

int clv_cmd_certs_revoke(void *args) {
  const clv_master_arguments *a = args;
  clv_err err;
  const char *dir = certs_folder(a), *name = a->line.n_words ? a->line.words[0] : NULL;
  int days = a->days ? (int)a->days : CLV_TLS_CRL_DAYS;
  if (clv_tls_ca_revoke(dir, name, days, &err) != CLV_OK) return report_error(&err);
  printf(
      "%s/crl.pem made, for %d day%s%s%s; give it to both sides as tls.crl, and have the workers "
      "read it (SIGHUP)\n",
      dir, days, CLV_S(days), name ? ", with " : "", name ? name : "");
  return CLV_EXIT_OK;
}
