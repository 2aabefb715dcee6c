/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion script of bash: a case for each row of the tables, and a few functions that are the
 * same for every program. Does not need the bash-completion package. Names of commands, options and
 * choices are plain words, which need no quoting.
 *
 * Bash splits words at '=' and ':' as well. The script joins the parts again, and replies with the
 * part after the split, because bash replaces only that part.
 */
#include <string.h>

#include "common/base/cli/cli_int.h"

/* Shell functions of the script. In their names @ is replaced by the program's name. */
static const char functions[] =
    "@_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$2\"); }\n"
    "@_files() {\n"
    "  compopt -o filenames 2> /dev/null\n"
    "  mapfile -t COMPREPLY < <({ compgen -f -X \"!*$1\" -- \"$2\"; compgen -d -- \"$2\"; } | sort "
    "-u)\n"
    "}\n"
    "@_keys() { # KEY=VALUE: first the key\n"
    "  case $2 in\n"
    "    *=*) @_words \"$1\" \"$2\"; COMPREPLY=(\"${COMPREPLY[@]#*=}\") ;;\n"
    "    *) compopt -o nospace 2> /dev/null\n"
    "       mapfile -t COMPREPLY < <(compgen -W \"$(sed 's/=[^ ]*/=/g' <<< \"$1\")\" -- \"$2\" | "
    "sort -u) ;;\n"
    "  esac\n"
    "}\n"
    "@_offer() { # what a value may be, what is typed of it\n"
    "  case $1 in\n"
    "    files*) @_files \"${1#files}\" \"$2\" ;;\n"
    "    folders) compopt -o filenames 2> /dev/null; mapfile -t COMPREPLY < <(compgen -d -- "
    "\"$2\") ;;\n"
    "    keys\\ *) @_keys \"${1#keys }\" \"$2\" ;;\n"
    "    words\\ *) @_words \"${1#words }\" \"$2\" ;;\n"
    "  esac\n"
    "}\n"
    "@() {\n"
    "  local -a w=() args=()\n"
    "  local i n=0 path= joined= value= skip=0 rest= options=\n"
    "  COMPREPLY=()\n"
    "  for ((i = 0; i <= COMP_CWORD; i++)); do\n"
    "    if ((i)) && [[ $joined || ${COMP_WORDS[i]} == [=:]* ]]; then\n"
    "      w[-1]+=${COMP_WORDS[i]}\n"
    "    else\n"
    "      w+=(\"${COMP_WORDS[i]}\")\n"
    "    fi\n"
    "    joined=; [[ ${COMP_WORDS[i]} == [=:]* ]] && joined=1\n"
    "  done\n"
    "  local cur=${w[-1]}\n"
    "  for ((i = 1; i < ${#w[@]} - 1; i++)); do\n"
    "    if @_value \"${w[i]}\"; then\n"
    "      ((++i == ${#w[@]} - 1)) && { @_offer \"$value\" \"$cur\"; return; }\n"
    "    elif [[ ${w[i]} != -* ]]; then\n"
    "      path+=\"${w[i]} \"; ((++n))\n"
    "    fi\n"
    "  done\n"
    "  if [[ $cur == --*=* ]] && @_value \"${cur%%=*}\"; then\n"
    "    @_offer \"$value\" \"${cur#*=}\"\n"
    "    return\n"
    "  fi\n"
    "  @_command\n"
    "  if [[ $cur == -* ]]; then @_words \"$options\" \"$cur\"; return; fi\n"
    "  @_offer \"${args[n - skip]-$rest}\" \"$cur\"\n"
    "}\n";

static void make_identifier(clv_bytes *out, const char *name) {
  clv_bytes_puts(out, "_");
  for (; *name; name++) clv_bytes_printf(out, "%c", *name == '-' ? '_' : *name);
}

static void add_functions(const clv_cli *cli, clv_bytes *out) {
  for (const char *p = functions; *p; p++)
    if (*p == '@' && p[1] != ']')
      make_identifier(out, cli->name);
    else
      clv_bytes_add(out, p, 1);
}

/* Writes what completion offers for an argument: 'files.yaml', 'folders', 'words bash zsh', 'keys
 * a= b=c' or ''. */
static void add_offer(const clv_cli_arg *arg, clv_bytes *out) {
  clv_bytes_puts(out, "'");
  if (arg->completion == CLV_COMPLETE_FILES) clv_bytes_printf(out, "files%s", arg->suffix);
  if (arg->completion == CLV_COMPLETE_FOLDERS) clv_bytes_puts(out, "folders");
  if (arg->completion == CLV_COMPLETE_WORDS) clv_bytes_puts(out, "words ");
  if (arg->completion == CLV_COMPLETE_KEYS) {
    clv_bytes_puts(out, "keys");
    arg->keys(out);
  }
  for (const char *p = arg->name; arg->completion == CLV_COMPLETE_WORDS && *p; p++)
    clv_bytes_printf(out, "%c", *p == '|' ? ' ' : *p);
  clv_bytes_puts(out, "'");
}

/* Writes a function that sets `value` to what completion offers for an option's value, and fails
 * for options without a value. */
static void add_values(const clv_cli *cli, clv_bytes *out) {
  make_identifier(out, cli->name);
  clv_bytes_puts(out, "_value() {\n  case $1 in\n");
  for (size_t i = 0; i < clv_cli_n_options(cli); i++) {
    const clv_cli_option *o = clv_cli_option_at(cli, i);
    clv_cli_arg value;
    if (o->kind == CLV_CLI_FLAG) continue;
    clv_cli_value_of(o, &value);
    clv_bytes_puts(out, "    ");
    if (o->key) clv_bytes_printf(out, "-%c|", o->key);
    clv_bytes_printf(out, "--%s) value=", o->name);
    add_offer(&value, out);
    clv_bytes_puts(out, " ;;\n");
  }
  clv_bytes_puts(out, "    *) return 1 ;;\n  esac\n}\n");
}

static void add_options(const clv_cli *cli, const clv_cli_command *c, clv_bytes *out) {
  clv_bytes_puts(out, " options='");
  for (size_t i = 0; i < clv_cli_n_options(cli); i++) {
    const clv_cli_option *o = clv_cli_option_at(cli, i);
    if (clv_cli_option_applies(o, c)) clv_bytes_printf(out, " --%s", o->name);
  }
  clv_bytes_puts(out, "'");
}

static void add_command(const clv_cli *cli, const clv_cli_command *c, clv_bytes *out) {
  const char *at = c->args;
  clv_cli_arg arg;
  clv_bytes_printf(out, "    '%s '*) skip=%d args=(", c->name, clv_cli_is_grouped(c) ? 2 : 1);
  CLV_AUTO(clv_bytes_done) clv_bytes rest = {0};
  while (clv_cli_next_arg(&at, &arg)) {
    if (arg.is_repeated) add_offer(&arg, &rest);
    add_offer(&arg, out);
    clv_bytes_puts(out, " ");
  }
  clv_bytes_printf(out, ") rest=%s", rest.len ? rest.data : "''");
  add_options(cli, c, out);
  clv_bytes_puts(out, " ;;\n");
}

/* Writes a case for a group of commands, whose first command is number i: it offers their second
 * words. */
static void add_group(const clv_cli *cli, size_t i, clv_bytes *out) {
  const clv_cli_command *first = clv_cli_command_at(cli, i);
  int n = (int)clv_cli_first_word(first);
  clv_bytes_printf(out, "    '%.*s '*) skip=1 args=('words", n, first->name);
  for (size_t k = i; k < clv_cli_n_commands(cli); k++) {
    const clv_cli_command *c = clv_cli_command_at(cli, k);
    if (clv_cli_same_group(first, c)) clv_bytes_puts(out, c->name + n);
  }
  clv_bytes_puts(out, "')");
  add_options(cli, NULL, out);
  clv_bytes_puts(out, " ;;\n");
}

static void add_commands(const clv_cli *cli, clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes words = {0};
  make_identifier(out, cli->name);
  clv_bytes_puts(out, "_command() {\n  case $path in\n");
  for (size_t i = 0; i < clv_cli_n_commands(cli); i++) {
    const clv_cli_command *c = clv_cli_command_at(cli, i);
    add_command(cli, c, out);
    if (clv_cli_starts_group(cli, i))
      clv_bytes_printf(&words, " %.*s", (int)clv_cli_first_word(c), c->name);
  }
  for (size_t i = 0; i < clv_cli_n_commands(cli); i++)
    if (clv_cli_is_grouped(clv_cli_command_at(cli, i)) && clv_cli_starts_group(cli, i))
      add_group(cli, i, out);
  clv_bytes_printf(out, "    '') args=('words%s')", words.data);
  add_options(cli, NULL, out);
  clv_bytes_puts(out, " ;;\n  esac\n}\n");
}

void clv_cli_bash(const clv_cli *cli, clv_bytes *out) {
  clv_bytes_printf(out, "# bash completion, as `%s completion bash` prints it\n", cli->name);
  add_values(cli, out);
  add_commands(cli, out);
  add_functions(cli, out);
  clv_bytes_puts(out, "complete -F ");
  make_identifier(out, cli->name);
  clv_bytes_printf(out, " %s\n", cli->name);
}
