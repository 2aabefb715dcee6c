/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands and options of cleave-worker. Each is a row of a table, from which common/base/cli
 * makes the help, the manual page and the shell completions.
 */
#include "common/engine/engine.h"
#include "worker/worker_int.h"

#define OFFSET_OF(member) offsetof(clv_worker_arguments, member)

static void write_config_keys(clv_bytes *out) {
  clv_config_write_completions(CLV_CONFIG_WORKER, out);
}

/* clang-format off */
static const clv_cli_command commands[] = {
    {.name = "serve", .run = clv_cmd_serve, .doc = "run the daemon until SIGTERM",
     .paragraphs = "SIGHUP reads the configuration and the certificate files again. SIGTERM refuses new sessions, waits "
             "for the open ones up to drain_timeout and exits. Under systemd (Type=notify) it reports "
             "readiness, reloads, its end, open sessions and watchdog keep-alives."},
    {.name = "check", .run = clv_cmd_check,
     .doc = "check the configuration, its certificates and artifacts"},
    {.name = "devices", .args = "[WORKER.yaml]", .run = clv_cmd_devices, .doc = "list the devices that modules can compute on",
     .paragraphs = "Processor and NVIDIA devices, with memory, capability and libraries, or why there is no device. "
             "The libraries are searched as the configuration's keys under cuda say."},
};

static const clv_cli_option options[] = {
    {.name = "config", .key = 'c', .kind = CLV_CLI_TEXT, .arg = "FILE.yaml",
     .commands = "serve, check", .is_required = true, .offset = OFFSET_OF(config_path),
     .doc = "the worker's configuration"},
    {.name = "set", .key = 's', .kind = CLV_CLI_TEXTS, .arg = "KEY=VALUE",
     .commands = "serve, check", .offset = OFFSET_OF(sets), .keys = write_config_keys,
     .doc = "override one key of the configuration, as in log.level=debug"},
    {.name = "check", .key = 'n', .kind = CLV_CLI_FLAG, .commands = "serve",
     .offset = OFFSET_OF(checks_only), .doc = "as the command check"},
    {.name = "json", .kind = CLV_CLI_FLAG, .commands = "devices", .offset = OFFSET_OF(prints_json),
     .doc = "print results as JSON, one object a line"},
};
/* clang-format on */

static clv_code write_worker_man_page(clv_bytes *out, clv_err *err) {
  return clv_config_write_man_page(CLV_CONFIG_WORKER, out, err);
}

static const clv_cli_page pages[] = {
    {.name = "cleave-worker.yaml", .section = 5, .write = write_worker_man_page},
};

int main(int argc, char **argv) {
  static const clv_cli cli = {
      .name = "cleave-worker",
      .doc = "daemon that holds modules of networks for masters",
      .about =
          "The Cleave worker daemon: it holds modules of a model for authenticated masters, "
          "and computes on them. Its configuration lists the identities that may call.",
      .is_worker = true,
      .commands = commands,
      .n_commands = CLV_COUNT(commands),
      .options = options,
      .n_options = CLV_COUNT(options),
      .pages = pages,
      .n_pages = CLV_COUNT(pages),
      .see_also = "cleave\\-master(1), cleave\\-worker.yaml(5), cleave\\-session.yaml(5)",
  };
  static clv_worker_arguments a;
  clv_tune_malloc();
  return clv_cli_main(&cli, argc, argv, &a);
}
