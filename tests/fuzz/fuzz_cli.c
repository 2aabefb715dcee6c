/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes command lines, whose words are separated by NUL bytes, against a table with every kind of
 * option. A refused line must give a message, and an accepted line must have only values inside the
 * bounds of the table.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/cli/cli.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_WORDS = 400 };

typedef struct arguments {
  clv_cli_line command_line;
  bool flag;
  uint64_t whole_number;
  double real_number;
  const char *text, *required_text;
  int choice;
  clv_cli_list text_list;
} arguments;

static const char *const choices[] = {"one", "two", NULL};

/* clang-format off */
static const clv_cli_command commands[] = {
    {.name = "go", .args = "A.yaml [B]", .doc = "go"}, {.name = "x y", .args = "one|two", .doc = "x"},
    {.name = "x z", .args = "N...", .doc = "z"}, {.name = "must", .doc = "m"},
};
static const clv_cli_option options[] = {
    {.name = "flag", .key = 'f', .kind = CLV_CLI_FLAG, .offset = offsetof(arguments, flag), .doc = "f"},
    {.name = "number", .key = 'n', .kind = CLV_CLI_NUMBER, .arg = "N", .min = 3, .max = 7, .commands = "go, x z",
     .offset = offsetof(arguments, whole_number), .doc = "n"},
    {.name = "real", .kind = CLV_CLI_REAL, .arg = "R", .low = 1, .high = 2,
     .offset = offsetof(arguments, real_number), .doc = "r"},
    {.name = "text", .key = 't', .kind = CLV_CLI_TEXT, .arg = "T", .commands = "x", .offset = offsetof(arguments, text), .doc = "t"},
    {.name = "choice", .kind = CLV_CLI_CHOICE, .arg = "C", .choices = choices, .offset = offsetof(arguments, choice), .doc = "c"},
    {.name = "needed", .kind = CLV_CLI_TEXT, .arg = "N", .commands = "must", .is_required = true,
     .offset = offsetof(arguments, required_text), .doc = "n"},
    {.name = "list", .kind = CLV_CLI_TEXTS, .arg = "L", .offset = offsetof(arguments, text_list), .doc = "l"},
};
/* clang-format on */
static const clv_cli cli = {.name = "prog",
                            .doc = "d",
                            .about = "About this.\n\nAnd more.",
                            .commands = commands,
                            .n_commands = CLV_COUNT(commands),
                            .options = options,
                            .n_options = CLV_COUNT(options),
                            .see_also = ""};

static void check_arguments(const arguments *a, clv_code code, const clv_err *err) {
  NEVER(code != CLV_OK && !err->text[0]);
  NEVER(a->whole_number && (a->whole_number < 3 || a->whole_number > 7));
  NEVER(a->real_number != 0 && !(a->real_number >= 1 && a->real_number <= 2));
  NEVER(a->choice < 0 || a->choice > 2 || a->text_list.n > CLV_CLI_LIST);
  NEVER(a->command_line.n_words > CLV_CLI_WORDS);
  NEVER(code == CLV_OK && !a->command_line.command && !a->command_line.help &&
        !a->command_line.version);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *argv[MAX_WORDS + 1] = {"prog"}, *text = malloc(size + 1);
  int argc = 1;
  if (!text) return 0;
  memcpy(text, data, size);
  text[size] = '\0';
  for (char *at = text; at < text + size && argc < MAX_WORDS; at += strlen(at) + 1)
    argv[argc++] = at;
  static arguments a;
  clv_err err = {0};
  memset(&a, 0, sizeof a);
  clv_code code = clv_cli_parse(&cli, argc, argv, &a, &err);
  check_arguments(&a, code, &err);
  CLV_AUTO(clv_bytes_done) clv_bytes help = {0};
  if (code == CLV_OK) clv_cli_help(&a.command_line, &help);
  free(text);
  return 0;
}
