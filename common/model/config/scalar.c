/* SPDX-License-Identifier: Apache-2.0
 *
 * Strict parsing of single values: the complete text must match. The form is checked before strtod,
 * because strtod also accepts hexadecimal, "inf", "nan" and leading blanks.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/config/schema_int.h"

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
static bool is_letter(char c) { return is_lower(c) || (c >= 'A' && c <= 'Z'); }

static const char *skip_digits(const char *p) {
  while (is_digit(*p)) p++;
  return p;
}

bool clv_text_to_u64(const char *text, uint64_t *ret) {
  if (!is_digit(text[0]) || (text[0] == '0' && text[1])) return false;
  if (*skip_digits(text)) return false;
  errno = 0;
  unsigned long long value = strtoull(text, NULL, 10);
  if (errno) return false;
  *ret = value;
  return true;
}

bool clv_text_to_i64(const char *text, int64_t *ret) {
  uint64_t magnitude;
  bool is_negative = text[0] == '-';
  if (!clv_text_to_u64(text + is_negative, &magnitude)) return false;
  if (magnitude > (uint64_t)INT64_MAX) return false;
  *ret = is_negative ? -(int64_t)magnitude : (int64_t)magnitude;
  return true;
}

bool clv_text_to_double(const char *text, double *ret) {
  const char *p = text + (text[0] == '-' || text[0] == '+');
  const char *digits = p;
  p = skip_digits(p);
  size_t n_digits = (size_t)(p - digits);
  if (*p == '.') {
    const char *fraction = p + 1;
    p = skip_digits(fraction);
    n_digits += (size_t)(p - fraction);
  }
  if (n_digits == 0) return false;
  if (*p == 'e' || *p == 'E') {
    p += 1 + (p[1] == '-' || p[1] == '+');
    if (!is_digit(*p)) return false;
    p = skip_digits(p);
  }
  if (*p) return false;
  char *end;
  double value = strtod(text, &end);
  if (*end || !isfinite(value)) return false;
  *ret = value;
  return true;
}

/* True for digits[.digits], blanks and letters, such as "1.5 GiB": the form that clv_parse_size and
 * clv_parse_duration expect. */
static bool is_quantity(const char *p) {
  if (!is_digit(*p) || strlen(p) > 40) return false;
  p = skip_digits(p);
  if (*p == '.') p = skip_digits(p + 1);
  while (*p == ' ') p++;
  while (is_letter(*p)) p++;
  return *p == '\0';
}

bool clv_text_to_size(const char *text, uint64_t *ret) {
  /* a plain number is parsed exactly, also above 2^53 */
  if (clv_text_to_u64(text, ret)) return true;
  return is_quantity(text) && clv_parse_size(text, ret, NULL) == CLV_OK;
}

bool clv_text_to_duration(const char *text, uint64_t *ret) {
  return is_quantity(text) && clv_parse_duration(text, ret, NULL) == CLV_OK;
}

/* Parses a seed. A decimal number becomes the lower half of the key. A seed whose upper half is
 * zero is guessable, in either spelling. */
bool clv_seed_parse(const char *text, clv_seed *ret) {
  static const uint8_t zeros[8];
  clv_seed seed = {.is_given = true};
  uint64_t number;
  if (clv_text_to_u64(text, &number))
    for (int i = 0; i < 8; i++) seed.key.bytes[15 - i] = (uint8_t)(number >> 8 * i);
  else if (!clv_hex_parse(text, seed.key.bytes, sizeof seed.key.bytes))
    return false;
  seed.is_guessable = memcmp(seed.key.bytes, zeros, sizeof zeros) == 0;
  *ret = seed;
  return true;
}

void clv_double_to_text(double value, char text[32]) {
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(text, 32, "%.*g", digits, value);
    if (strtod(text, NULL) == value) break;
  }
  if (strchr(text, '.')) return;
  char exponent_text[8];
  /* 1 becomes 1.0, and 1e-08 becomes 1.0e-08, so that every YAML reader takes it for a real number
   */
  size_t digits = strcspn(text, "e");
  snprintf(exponent_text, sizeof exponent_text, "%.7s", text + digits);
  snprintf(text + digits, 32 - digits, ".0%s", exponent_text);
}

typedef struct quantity_unit {
  const char *unit_name;
  uint64_t unit_factor;
} quantity_unit;

/* Writes the value in the largest unit that divides it, so that nothing is rounded. */
static void quantity_to_text(uint64_t value, const quantity_unit *units, size_t n, char text[32]) {
  size_t i = 0;
  while (i + 1 < n && (value == 0 || value % units[i].unit_factor)) i++;
  snprintf(text, 32, "%llu%s", (unsigned long long)(value / units[i].unit_factor),
           units[i].unit_name);
}

void clv_size_to_text(uint64_t bytes, char text[32]) {
  static const quantity_unit units[] = {
      {"TiB", 1ull << 40}, {"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10}, {"", 1}};
  quantity_to_text(bytes, units, CLV_COUNT(units), text);
}

void clv_duration_to_text(uint64_t ms, char text[32]) {
  static const quantity_unit units[] = {{"h", 3600000}, {"s", 1000}, {"ms", 1}};
  quantity_to_text(ms, units, CLV_COUNT(units), text);
}

/* ---- formats of texts ------------------------------------------------------------------------ */

/* True for a text of 1 to 64 characters that are letters, digits or in `others`. */
static bool has_only_word_chars(const char *text, const char *others) {
  size_t n = 0;
  for (; text[n]; n++)
    if (n >= 64 || !(is_letter(text[n]) || is_digit(text[n]) || strchr(others, text[n])))
      return false;
  return n > 0;
}

static bool is_not_empty(const char *text) { return text[0] != '\0'; }
static bool is_run_name(const char *text) {
  return has_only_word_chars(text, "._-") && text[0] != '.';
}
static bool is_name(const char *text) { return has_only_word_chars(text, "_-"); }

static bool is_attr_name(const char *text) {
  if (!is_lower(text[0]) || !has_only_word_chars(text, "_")) return false;
  for (; *text; text++)
    if (!is_lower(*text) && !is_digit(*text) && *text != '_') return false;
  return true;
}

static bool is_op_name(const char *text) {
  return is_letter(text[0]) && has_only_word_chars(text, "_");
}

static bool is_host_port(const char *text, uint64_t least_port) {
  uint64_t port;
  const char *colon = strrchr(text, ':');
  if (!colon || colon == text || colon - text > 255) return false;
  bool has_brackets = text[0] == '[' && colon[-1] == ']' && colon - text > 2;
  const char *others = has_brackets ? ".:%" : ".-_";
  for (const char *p = text + has_brackets; p < colon - has_brackets; p++)
    if (!is_letter(*p) && !is_digit(*p) && !strchr(others, *p)) return false;
  return clv_text_to_u64(colon + 1, &port) && port >= least_port && port <= 65535;
}

static bool is_address(const char *text) { return is_host_port(text, 1); }
static bool is_listen_address(const char *text) { return is_host_port(text, 0); }

static bool is_uri(const char *text) {
  size_t n = 0;
  if (!is_lower(text[0]) || strlen(text) > 2048) return false;
  while (is_lower(text[n]) || is_digit(text[n]) || (text[n] && strchr("+.-", text[n]))) n++;
  if (strncmp(text + n, "://", 3) != 0 || !text[n + 3] || text[n + 3] == '/') return false;
  for (const char *p = text + n + 3; *p; p++)
    if (*p <= ' ' || *p > '~' || strchr("\"<>\\^`{|}", *p)) return false;
  return true;
}

static bool is_sha256(const char *text) {
  clv_sha256 digest;
  return clv_sha256_parse(text, &digest);
}

static bool is_cpu_or_auto(const char *text) {
  return strcmp(text, "cpu") == 0 || strcmp(text, "auto") == 0;
}

/* True for "cuda" and for "cuda:N", where N is 0 to 63. */
static bool is_cuda_device(const char *text) {
  if (strcmp(text, "cuda") == 0) return true;
  if (strncmp(text, "cuda:", 5) != 0) return false;
  const char *digits = text + 5;
  size_t n = strspn(digits, "0123456789");
  return n >= 1 && n <= 2 && !digits[n] && atoi(digits) < 64 && (n == 1 || digits[0] != '0');
}

static bool is_worker_device(const char *text) {
  return is_cpu_or_auto(text) || is_cuda_device(text);
}

/* True for the name of a device that a stage may ask for. */
static bool is_stage_device(const char *text) {
  bool has_number = strncmp(text, "cpu:", 4) == 0 && text[4] >= '0' && text[4] <= '7' && !text[5];
  return has_number || is_cpu_or_auto(text) || is_cuda_device(text);
}

static const struct {
  bool (*ok)(const char *text);
  const char *description, *pattern;
} formats[] = {
    [CLV_FORMAT_ANY] = {.ok = is_not_empty, .description = "a text"},
    [CLV_FORMAT_RUN] = {.ok = is_run_name,
                        .description = "a name of 1 to 64 letters, digits, '.', '_' or '-'",
                        .pattern = "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"},
    [CLV_FORMAT_NAME] = {.ok = is_name,
                         .description = "a name of 1 to 64 letters, digits, '_' or '-'",
                         .pattern = "^[A-Za-z0-9_-]{1,64}$"},
    [CLV_FORMAT_WORD] = {.ok = is_attr_name,
                         .description = "a word of 1 to 64 lower-case letters, digits or '_'",
                         .pattern = "^[a-z][a-z0-9_]{0,63}$"},
    [CLV_FORMAT_OP] = {.ok = is_op_name,
                       .description = "the name of an operation, such as linear",
                       .pattern = "^[A-Za-z][A-Za-z0-9_]{0,63}$"},
    [CLV_FORMAT_ADDRESS] = {.ok = is_address,
                            .description = "an address such as host:7443",
                            .pattern = "^(\\[[0-9A-Za-z.:%]+\\]|[0-9A-Za-z._-]+):[1-9][0-9]{0,4}$"},
    [CLV_FORMAT_LISTEN] = {.ok = is_listen_address,
                           .description = "an address such as 127.0.0.1:7443",
                           .pattern =
                               "^(\\[[0-9A-Za-z.:%]+\\]|[0-9A-Za-z._-]+):(0|[1-9][0-9]{0,4})$"},
    [CLV_FORMAT_URI] = {.ok = is_uri,
                        .description = "a URI such as spiffe://example.org/worker/gpu1",
                        .pattern = "^[a-z][a-z0-9+.-]*://[^/]"},
    [CLV_FORMAT_SHA256] = {.ok = is_sha256,
                           .description = "a SHA-256 of 64 hexadecimal digits",
                           .pattern = "^[0-9A-Fa-f]{64}$"},
    [CLV_FORMAT_DEVICE] = {.ok = is_stage_device,
                           .description =
                               "cpu, cpu:0 to cpu:7, cuda, cuda:0 to cuda:63, or auto, which is "
                               "what its node computes on",
                           .pattern = "^(cpu(:[0-7])?|auto|cuda(:([0-9]|[1-5][0-9]|6[0-3]))?)$"},
    [CLV_FORMAT_WORKER_DEVICE] = {.ok = is_worker_device,
                                  .description =
                                      "cpu, cuda, cuda:0 to cuda:63, or auto, which is cuda where "
                                      "there is one, else cpu",
                                  .pattern = "^(cpu|auto|cuda(:([0-9]|[1-5][0-9]|6[0-3]))?)$"},
    [CLV_FORMAT_FOLDER] = {.ok = is_not_empty, .description = "a folder, true or false"},
};

bool clv_format_matches(clv_text_format format, const char *text) {
  return formats[format].ok(text);
}
const char *clv_format_description(clv_text_format format) { return formats[format].description; }
const char *clv_format_pattern(clv_text_format format) { return formats[format].pattern; }

/* ---- descriptions of values ------------------------------------------------------------------ */

bool clv_row_allows_names(const clv_row *row) {
  return (row->kind == CLV_ROW_INT || row->kind == CLV_ROW_SIZE) && row->names;
}

const char *clv_row_word_of_value(const clv_row *row, uint64_t value) {
  const char *const *names = clv_row_allows_names(row) ? row->names : NULL;
  for (uint64_t i = 0; names && names[i]; i++)
    if (value == -i) return names[i];
  return NULL;
}

/* Writes the words of a row for a message: "auto, textbook or ". Returns the number of bytes used
 * in buf, at most len. */
static size_t describe_words(const clv_row *row, char *buf, size_t len) {
  size_t used = 0;
  for (size_t i = 0; row->names && row->names[i] && used < len; i++)
    used += (size_t)snprintf(buf + used, len - used, "%s, ", row->names[i]);
  if (used >= len) return len;
  if (used) used = used - 2 + (size_t)snprintf(buf + used - 2, len - used + 2, " or ");
  return used;
}

static void describe_int(const clv_row *row, char *buf, size_t len) {
  size_t used = describe_words(row, buf, len);
  if (row->min == row->max)
    snprintf(buf + used, len - used, "%llu", (unsigned long long)row->min);
  else
    snprintf(buf + used, len - used, "a whole number from %llu to %llu",
             (unsigned long long)row->min, (unsigned long long)row->max);
}

static void describe_quantity(const clv_row *row, char *buf, size_t len) {
  char low[32] = "", high[32] = "";
  bool is_size = row->kind == CLV_ROW_SIZE;
  void (*const to_text)(uint64_t, char[32]) = is_size ? clv_size_to_text : clv_duration_to_text;
  to_text(row->min, low);
  to_text(row->max, high);
  size_t used = describe_words(row, buf, len);
  snprintf(buf + used, len - used, "a %s from %s to %s", is_size ? "size" : "duration", low, high);
}

static void describe_number(const clv_row *row, char *buf, size_t len) {
  char low[40] = "", high[40] = "";
  const char *what = row->kind == CLV_ROW_NUMBERS ? "numbers" : "a number";
  if (row->low > -1e300)
    snprintf(low, sizeof low, row->excludes_low ? " above %g" : " from %g", row->low);
  if (row->high < 1e300)
    snprintf(high, sizeof high, row->excludes_low ? " up to %g" : " to %g", row->high);
  snprintf(buf, len, "%s%s%s", what, low, high);
}

static void describe_enum(const clv_row *row, char *buf, size_t len) {
  size_t used = (size_t)snprintf(buf, len, "one of ");
  const char *comma = "";
  for (const char *const *name = row->names; *name && used < len; name++) {
    if (!**name) continue;
    used += (size_t)snprintf(buf + used, len - used, "%s%s", comma, *name);
    comma = ", ";
  }
}

static void describe_list(const clv_row *row, char *buf, size_t len) {
  char of[80] = "entries";
  if (row->kind == CLV_ROW_TEXTS) snprintf(of, sizeof of, "texts");
  if (row->kind == CLV_ROW_NUMBERS) describe_number(row, of, sizeof of);
  if (row->min == row->max && row->min)
    snprintf(buf, len, "a list of %llu %s", (unsigned long long)row->min, of);
  else if (row->min)
    snprintf(buf, len, "a list of at least %llu %s", (unsigned long long)row->min, of);
  else
    snprintf(buf, len, "a list of %s", of);
}

void clv_row_describe_expected(const clv_row *row, char *buf, size_t len) {
  static void (*const describe_fns[CLV_ROW_KINDS])(const clv_row *, char *, size_t) = {
      [CLV_ROW_INT] = describe_int,       [CLV_ROW_NUMBER] = describe_number,
      [CLV_ROW_SIZE] = describe_quantity, [CLV_ROW_DURATION] = describe_quantity,
      [CLV_ROW_ENUM] = describe_enum,     [CLV_ROW_TEXTS] = describe_list,
      [CLV_ROW_NUMBERS] = describe_list,  [CLV_ROW_LIST] = describe_list,
  };
  static const char *const words[CLV_ROW_KINDS] = {
      [CLV_ROW_SECTION] = "a mapping of keys",
      [CLV_ROW_MAP] = "a mapping of names",
      [CLV_ROW_BOOL] = "true or false",
      [CLV_ROW_PATH] = "a path",
      [CLV_ROW_SEED] = "32 hexadecimal digits or a whole number below 2^64",
      [CLV_ROW_RANGE] =
          "a list of layers or a range such as 0..3 or conv1..layer2 (layer 6 alone is 6..6)",
      [CLV_ROW_ATTRS] = "a number, a text, true, false or a list of whole numbers",
  };
  if (describe_fns[row->kind])
    describe_fns[row->kind](row, buf, len);
  else
    snprintf(buf, len, "%s",
             row->kind == CLV_ROW_TEXT ? clv_format_description(row->format) : words[row->kind]);
}
