/* SPDX-License-Identifier: Apache-2.0
 *
 * The options and commands that every program has, and access to the rows of the tables.
 */
#include <ctype.h>
#include <string.h>

#include "common/base/cli/cli_int.h"

static const char *const formats[] = {"text", "json", NULL};

/* clang-format off */
static const clv_cli_option own_options[] = {
    {.name = "verbose", .key = 'v', .kind = CLV_CLI_FLAG, .offset = offsetof(clv_cli_line, verbose),
     .doc = "log at debug level"},
    {.name = "log-format", .kind = CLV_CLI_CHOICE, .arg = "FORMAT", .choices = formats,
     .offset = offsetof(clv_cli_line, log_format),
     .doc = "lines on standard error, progress too: text or one JSON object each; beats log.json of the file"},
    {.name = "help", .key = 'h', .kind = CLV_CLI_FLAG, .offset = offsetof(clv_cli_line, help),
     .doc = "say how it is used; behind a command: that command"},
    {.name = "version", .key = 'V', .kind = CLV_CLI_FLAG, .offset = offsetof(clv_cli_line, version),
     .doc = "print the version"},
};

static const clv_cli_command own_commands[] = {
    {.name = "completion", .args = "bash|zsh", .run = clv_cli_run_completion,
     .doc = "print the completion script of a shell",
     .paragraphs = "For one shell: source <(PROGRAM completion bash), or zsh (after compinit). `make install` puts both in place for all."},
    {.name = "man", .args = "[PAGE]", .run = clv_cli_run_man,
     .doc = "print a manual page as man(7) text: this program's or that of PAGE"},
};
/* clang-format on */

size_t clv_cli_n_options(const clv_cli *cli) { return cli->n_options + CLV_COUNT(own_options); }

const clv_cli_option *clv_cli_option_at(const clv_cli *cli, size_t i) {
  return i < cli->n_options ? &cli->options[i] : &own_options[i - cli->n_options];
}

size_t clv_cli_n_commands(const clv_cli *cli) { return cli->n_commands + CLV_COUNT(own_commands); }

const clv_cli_command *clv_cli_command_at(const clv_cli *cli, size_t i) {
  return i < cli->n_commands ? &cli->commands[i] : &own_commands[i - cli->n_commands];
}

size_t clv_cli_first_word(const clv_cli_command *command) { return strcspn(command->name, " "); }

bool clv_cli_is_grouped(const clv_cli_command *command) {
  return command->name[clv_cli_first_word(command)] != '\0';
}

bool clv_cli_starts_with(const clv_cli_command *command, const char *word) {
  size_t n = clv_cli_first_word(command);
  return strlen(word) == n && strncmp(command->name, word, n) == 0;
}

bool clv_cli_same_group(const clv_cli_command *a, const clv_cli_command *b) {
  size_t n = clv_cli_first_word(a);
  return n == clv_cli_first_word(b) && strncmp(a->name, b->name, n) == 0;
}

bool clv_cli_starts_group(const clv_cli *cli, size_t i) {
  for (size_t k = 0; k < i; k++)
    if (clv_cli_same_group(clv_cli_command_at(cli, k), clv_cli_command_at(cli, i))) return false;
  return true;
}

bool clv_cli_option_applies(const clv_cli_option *option, const clv_cli_command *command) {
  if (!option->commands) return true;
  if (!command) return false;
  for (const char *at = option->commands; *at;) {
    size_t n = strcspn(at, ",");
    bool has_prefix = strncmp(command->name, at, n) == 0;
    if (has_prefix && (command->name[n] == '\0' || command->name[n] == ' ')) return true;
    at += n;
    at += strspn(at, ", ");
  }
  return false;
}

/* ---- synopses of arguments, such as "SESSION.yaml [NAME]" ------------------------------------ */

static const struct {
  const char *ending;
  clv_cli_completion completion;
  const char *suffix;
} offers[] = {
    {.ending = ".yaml", .completion = CLV_COMPLETE_FILES, .suffix = ".yaml"},
    {.ending = ".pem", .completion = CLV_COMPLETE_FILES, .suffix = ".pem"},
    {.ending = "FILE", .completion = CLV_COMPLETE_FILES, .suffix = ""},
    {.ending = "PATH", .completion = CLV_COMPLETE_FILES, .suffix = ""},
    {.ending = "DIR", .completion = CLV_COMPLETE_FOLDERS, .suffix = ""},
    {.ending = "RUN", .completion = CLV_COMPLETE_FOLDERS, .suffix = ""},
};

static void find_offer(clv_cli_arg *arg) {
  size_t len = strlen(arg->name);
  arg->completion = strchr(arg->name, '|') ? CLV_COMPLETE_WORDS : CLV_COMPLETE_NOTHING;
  arg->suffix = "";
  for (size_t i = 0; i < CLV_COUNT(offers); i++) {
    size_t n = strlen(offers[i].ending);
    if (n > len || strcmp(arg->name + len - n, offers[i].ending) != 0) continue;
    arg->completion = offers[i].completion;
    arg->suffix = offers[i].suffix;
  }
}

bool clv_cli_next_arg(const char **at, clv_cli_arg *ret) {
  const char *start = *at ? *at + strspn(*at, " ") : "";
  size_t n = strcspn(start, " ");
  if (n == 0) return false;
  *at = start + n;
  *ret = (clv_cli_arg){.is_optional = *start == '['};
  if (ret->is_optional) start++, n -= CLV_MIN(n, (size_t)2);
  ret->is_repeated = n > 3 && memcmp(start + n - 3, "...", 3) == 0;
  if (ret->is_repeated) n -= 3;
  memcpy(ret->name, start, CLV_MIN(n, sizeof ret->name - 1));
  find_offer(ret);
  return true;
}

void clv_cli_value_of(const clv_cli_option *option, clv_cli_arg *ret) {
  size_t used = 0;
  *ret = (clv_cli_arg){.suffix = ""};
  const char *const *choices = option->kind == CLV_CLI_CHOICE ? option->choices : NULL;
  for (; choices && *choices; choices++) {
    if (used + strlen(*choices) + 2 > sizeof ret->name) break;
    if (used) ret->name[used++] = '|';
    strcpy(ret->name + used, *choices);
    used += strlen(*choices);
  }
  if (used) {
    ret->completion = CLV_COMPLETE_WORDS;
    return;
  }
  strncpy(ret->name, option->arg ? option->arg : "", sizeof ret->name - 1);
  find_offer(ret);
  ret->keys = option->keys;
  if (ret->keys) ret->completion = CLV_COMPLETE_KEYS;
}

void clv_cli_option_forms(const clv_cli_option *option, clv_bytes *out) {
  if (option->key) clv_bytes_printf(out, "-%c, ", option->key);
  clv_bytes_printf(out, "--%s", option->name);
  if (option->arg) clv_bytes_printf(out, "=%s", option->arg);
}

void clv_cli_capitalize(const char *text, clv_bytes *out) {
  clv_bytes_printf(out, "%c%s.", toupper((unsigned char)text[0]), text[0] ? text + 1 : "");
}

bool clv_cli_paragraph(const char **at, clv_bytes *ret) {
  if (!*at || !**at) return false;
  const char *end = strstr(*at, "\n\n");
  size_t n = end ? (size_t)(end - *at) : strlen(*at);
  ret->len = 0;
  clv_bytes_add(ret, *at, n);
  *at += n;
  *at += strspn(*at, "\n");
  return true;
}
