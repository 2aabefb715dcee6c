/* SPDX-License-Identifier: Apache-2.0
 *
 * base: used by every other folder. Result codes and located errors, checked size arithmetic,
 * scope-bound clean-up, growing byte strings, logging, a monotonic clock, digests and the
 * counter-based random generator.
 *
 * Threads: every function may be called from any thread unless its comment says otherwise. The only
 * state kept here is that of the log (level, form, limits) and of clv_interrupt.
 */
#ifndef CLEAVE_BASE_H
#define CLEAVE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- result codes -------------------------------------------------------------------------- */

/* The values are those of gRPC's status codes, so that a remote failure keeps its meaning. */
typedef enum clv_code {
  CLV_OK = 0,
  CLV_CANCELLED = 1,
  CLV_UNKNOWN = 2,
  CLV_INVALID = 3, /* an argument, a file or a message is not valid in itself */
  CLV_DEADLINE = 4,
  CLV_NOT_FOUND = 5,
  CLV_EXISTS = 6,
  CLV_DENIED = 7,       /* the caller is authenticated, but not allowed to do this */
  CLV_EXHAUSTED = 8,    /* a quota, a limit or memory */
  CLV_PRECONDITION = 9, /* valid call in the wrong state */
  CLV_ABORTED = 10,
  CLV_RANGE = 11,
  CLV_UNIMPLEMENTED = 12,
  CLV_INTERNAL = 13,
  CLV_UNAVAILABLE = 14,
  CLV_DATA_LOSS = 15, /* damaged bytes: a checksum differs, or a format is violated */
  CLV_UNAUTHENTICATED = 16,
  /* a peer's answer violates the protocol; used only in this process, never sent */
  CLV_BAD_ANSWER = 17,
} clv_code;

/* Returns the lower-case name of a code ("not found"); "unknown" for values outside the list. */
const char *clv_code_name(clv_code code);

/* Sizes of the texts in a clv_err, in bytes with the NUL. */
enum { CLV_ERR_TEXT = 480, CLV_ERR_OP = 64, CLV_ERR_VALUE = 32 };

/* A failure, on the caller's stack. `text` quotes the offending setting, shape or size and the
 * limit. Errors may be sent to peers, so `text` never contains an element of a tensor.
 * `offending_value` has that element as text, for the user of this process. Filling a clv_err
 * allocates nothing, so it works when there is no memory left. */
typedef struct clv_err {
  clv_code code;
  const char *where; /* "file:line" of the code that failed; static */
  char text[CLV_ERR_TEXT];
  char failed_op[CLV_ERR_OP]; /* op that failed: "layer 3 (embedding), forward"; "": unknown */
  /* offending element of a tensor, "987654"; "": none */
  char offending_value[CLV_ERR_VALUE];
} clv_err;

#define CLV_STR2(x) #x
#define CLV_STR(x) CLV_STR2(x)
#define CLV_HERE __FILE__ ":" CLV_STR(__LINE__)
#define CLV_USE_RESULT __attribute__((warn_unused_result))
#define CLV_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Fills *err (NULL is allowed) and returns `code`. Use it through clv_fail. */
clv_code clv_fail_at(const char *where, clv_err *err, clv_code code, const char *fmt, ...)
    CLV_PRINTF(4, 5);
#define clv_fail(err, code, ...) clv_fail_at(CLV_HERE, (err), (code), __VA_ARGS__)

/* Stores the value of the offending element of a tensor as text in an error that has just been
 * filled. Returns the error's code. */
clv_code clv_err_set_offending_value(clv_err *err, const char *fmt, ...) CLV_PRINTF(2, 3);

/* Puts "prefix: " before the text of the error, so that a caller can say what it was doing. Returns
 * err's code (CLV_INTERNAL if err is NULL). */
clv_code clv_err_prefix(clv_err *err, const char *fmt, ...) CLV_PRINTF(2, 3);

/* Returns from the caller with the code of a call that failed. The only macro here that changes
 * control flow. */
#define CLV_TRY(call)                                  \
  do {                                                 \
    clv_code clv_try_code_ = (call);                   \
    if (clv_try_code_ != CLV_OK) return clv_try_code_; \
  } while (0)

/* Names a place where a test may stop, kill or delay the process (tests/failpoints). Takes a name,
 * or a format and its arguments. Empty in the programs themselves. */
#ifdef CLV_FAILPOINTS
void clv_failpoint(const char *format, ...) CLV_PRINTF(1, 2);
#define CLV_FAILPOINT(...) clv_failpoint(__VA_ARGS__)
#else
#define CLV_FAILPOINT(...)
#endif

/* ---- scope-bound clean-up -------------------------------------------------------------------- */

/* Every function whose name ends in _free, _unref, _done, _close, _release or _stop, in any folder,
 * accepts NULL for the object to free and then does nothing. Static functions may not accept NULL;
 * tests/closers.py lists other exceptions. */

/* Declares a scope-bound variable: CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL; calls the
 * function with &t at the end of the scope. */
#define CLV_AUTO(fn) __attribute__((cleanup(fn)))

/* Returns a scope-bound pointer and sets the variable to NULL: *ret_t = clv_steal(&t). */
#define clv_steal(pp)                 \
  (__extension__({                    \
    __typeof__(*(pp)) clv_s_ = *(pp); \
    *(pp) = NULL;                     \
    clv_s_;                           \
  }))

void clv_freep(void *pp); /* frees the memory at *(void **)pp; for CLV_AUTO */

/* Plural ending after a number: "%u session%s", n, CLV_S(n). */
#define CLV_S(n) ((n) == 1 ? "" : "s")

#define CLV_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define CLV_MIN(a, b) ((a) < (b) ? (a) : (b))
#define CLV_MAX(a, b) ((a) > (b) ? (a) : (b))

/* ---- memory and sizes ------------------------------------------------------------------------ */

/* Store the product or sum in *ret. False: it overflows, and *ret is unchanged. */
bool clv_mul_size(size_t a, size_t b, size_t *ret);
bool clv_add_size(size_t a, size_t b, size_t *ret);
size_t clv_align_up(size_t n, size_t alignment_pow2);

/* Allocates zeroed memory for n items of `size` bytes. n * size == 0 returns a valid pointer. The
 * caller frees it with free(). CLV_EXHAUSTED: out of memory, or the size overflows. */
clv_code clv_alloc(size_t n, size_t size, void *ret_pp, clv_err *err) CLV_USE_RESULT;

/* Cancellation hook of a long operation. The operation polls should_stop() and returns
 * CLV_CANCELLED when the caller has left. */
typedef struct clv_cancel_hook {
  /* true: the operation shall stop, because a deadline has passed or the caller has left */
  bool (*should_stop)(void *user);
  void *user;
} clv_cancel_hook;

/* Returns CLV_CANCELLED if cancel_hook->should_stop() returns true. cancel_hook NULL: never. */
clv_code clv_cancel_hook_check(const clv_cancel_hook *cancel_hook, clv_err *err) CLV_USE_RESULT;

/* Sets a large block to 0, and polls the cancellation hook `cancel_hook` between its parts.
 * CLV_CANCELLED: cancel_hook->should_stop() returned true. */
clv_code clv_zero_cancellable(const clv_cancel_hook *cancel_hook, void *at, size_t bytes,
                              clv_err *err) CLV_USE_RESULT;

/* Memory that this process may use, and where the limit comes from. */
typedef struct clv_host_memory {
  uint64_t bytes; /* bytes that this process may use; 0: unknown */
  /* source of the limit, for messages: "this host's memory", "the control group's memory.max" */
  char source[64];
} clv_host_memory;

/* Reads the memory limit of this process. root: "", or in tests a folder that replaces /. */
void clv_host_memory_read(const char *root, clv_host_memory *ret);

/* Finds the file of a loaded library by the beginning of its name, such as "libdnnl": the name goes
 * on with ".so", or with "-" as in a wheel. Stores its path, "" if no such library is loaded, and
 * returns true if one is. Loads nothing. */
bool clv_library_file_named(const char *name, char *ret, size_t len);
/* As clv_library_file_named, but finds the library that has the code or data at the address. */
bool clv_library_file_of(const void *address, char *ret, size_t len);
/* Returns true if a path is in one of the two folders of libraries that the Python wheel has. */
bool clv_is_file_of_wheel(const char *path);

/* Allocates memory aligned to 64 bytes, not zeroed; the caller frees it with free(). Counted in
 * clv_alloc_count. */
clv_code clv_alloc_aligned(size_t bytes, void *ret_pp, clv_err *err) CLV_USE_RESULT;

/* Returns how often clv_alloc, clv_alloc_aligned, clv_strdup and growing byte strings have
 * allocated memory in this process. A test checks that a step leaves it constant. */
uint64_t clv_alloc_count(void);

clv_code clv_strdup(const char *text, char **ret_copy, clv_err *err) CLV_USE_RESULT;

/* ---- growing byte strings -------------------------------------------------------------------- */

/* Initialise with {0}. `data` is NUL-terminated after every append. A failed append sets `failed`,
 * and later appends do nothing, so one check at the end is enough. */
typedef struct clv_bytes {
  char *data;
  size_t len, cap; /* bytes used and bytes allocated */
  bool failed;
} clv_bytes;

void clv_bytes_done(clv_bytes *b); /* frees the memory and zeroes *b; usable with CLV_AUTO */
void clv_bytes_add(clv_bytes *b, const void *data, size_t len);
void clv_bytes_puts(clv_bytes *b, const char *text);
void clv_bytes_printf(clv_bytes *b, const char *fmt, ...) CLV_PRINTF(2, 3);
/* Appends a quoted, escaped JSON string. Bytes that are not UTF-8 become U+FFFD. */
void clv_bytes_add_json(clv_bytes *b, const char *text);
/* Appends text of a manual page, with roff's control characters escaped. */
void clv_bytes_add_roff(clv_bytes *b, const char *text);

/* Reads a whole file into *ret, replacing its contents. CLV_EXHAUSTED: the file has more than
 * max_bytes; CLV_NOT_FOUND: there is no such file; CLV_INVALID: not a regular file. */
clv_code clv_file_read(const char *path, size_t max_bytes, clv_bytes *ret,
                       clv_err *err) CLV_USE_RESULT;

/* Writes PATH.tmp, syncs it, renames it to PATH and syncs the folder, so PATH is either complete or
 * unchanged. */
clv_code clv_file_write_durable(const char *path, const void *data, size_t len, unsigned mode,
                                clv_err *err) CLV_USE_RESULT;
/* Called before a file that was written is renamed to its final name. After an error the file that
 * had this name before stays. */
typedef clv_code clv_file_check_fn(void *user, clv_err *err);
/* As clv_file_write_durable, but calls `check` (NULL: none) between the sync and the rename. */
clv_code clv_file_write_checked(const char *path, const void *data, size_t len, unsigned mode,
                                clv_file_check_fn *check, void *user, clv_err *err) CLV_USE_RESULT;

/* Syncs the folder of a file, so that a new name in it survives a crash. */
clv_code clv_file_sync_folder(const char *path, clv_err *err) CLV_USE_RESULT;

/* Creates a folder and its missing parents (mode 0755 & ~umask). */
clv_code clv_mkdirs(const char *path, clv_err *err) CLV_USE_RESULT;

/* True if a peer's `name` is safe as a file name: 1 to CLV_FILE_NAME characters of [A-Za-z0-9._-],
 * no leading dot. So it is neither a path nor a hidden file. */
enum { CLV_FILE_NAME = 128 };
bool clv_is_file_name(const char *name);

/* ---- checking, copying and parsing texts ----------------------------------------------------- */

/* Copies `text`, or its beginning and "..." if it has `size` bytes or more. Does not cut a UTF-8
 * character. size: at least 4. Returns dst. */
const char *clv_text_truncate(const char *text, char *dst, size_t size);

/* Replaces every byte that is not printable ASCII by '?', so that text of a peer or a library is
 * safe to print on a terminal. */
void clv_text_to_printable(char *text);

/* Suffix of the name of a parameter's moving average, as in "fc.weight.ema", in the state of an
 * optimiser and in checkpoints. */
#define CLV_EMA_SUFFIX ".ema"

/* Appends UTF-8 text with its control characters replaced by '?', except line ends and tabs. */
void clv_text_sanitize_utf8(const char *text, clv_bytes *out);

/* Returns why bind() or listen() failed, and what helps. */
const char *clv_bind_error_text(int error);

/* Returns the candidate nearest to `word` by Levenshtein distance, at most 3 and half the word's
 * length. NULL: no candidate is that near. */
const char *clv_did_you_mean(const char *word, const char *const *candidates, size_t n);

/* Converts "64MiB", "1.5 GiB", "1k" or "250" to bytes (k/M/G: powers of 1000, Ki/Mi/Gi: powers of
 * 1024, B optional). */
clv_code clv_parse_size(const char *text, uint64_t *ret_bytes, clv_err *err) CLV_USE_RESULT;

/* Converts "30s", "250ms", "2m" or "1h" to milliseconds. */
clv_code clv_parse_duration(const char *text, uint64_t *ret_ms, clv_err *err) CLV_USE_RESULT;

/* Writes "1.5 MiB" to buf (at least 16 bytes); returns buf. */
char *clv_format_size(uint64_t bytes, char *buf, size_t len);

/* Returns "UTF-16" or "UTF-32" if the text begins with its byte order mark, or with ASCII
 * characters in UTF-16. NULL: the text is neither. */
const char *clv_text_utf16_or_32(const void *text, size_t len);

/* Decodes the UTF-8 character (RFC 3629) at `text`. Returns its bytes, 1 to 4, and its code point.
 * `left`: bytes available, at least 1; SIZE_MAX for NUL-terminated text. 0: not a character
 * (truncated, overlong, a surrogate or above U+10FFFF); *ret_point is unchanged. */
size_t clv_utf8_decode(const void *text, size_t left, uint32_t *ret_point);
/* True for U+0000..U+001F and U+007F..U+009F, the control characters of terminals. */
bool clv_is_control(uint32_t point);

/* ---- log lines ------------------------------------------------------------------------------- */

typedef enum clv_log_level {
  CLV_LOG_ERROR,
  CLV_LOG_WARN,
  CLV_LOG_INFO,
  CLV_LOG_DEBUG
} clv_log_level;

const char *clv_log_level_name(clv_log_level level); /* name of a level, such as "warn" */

/* Sets the level and form of log lines on standard error: `time level text`, or JSON objects with
 * time, level, event and message. If standard error is systemd's journal ($JOURNAL_STREAM), a line
 * begins with its priority, as in "<4>". Library folders log at debug only; the programs log the
 * rest. */
void clv_log_set(clv_log_level level, bool as_json);
void clv_log(clv_log_level level, const char *fmt, ...) CLV_PRINTF(2, 3);
/* As clv_log, with the event's name ("ready"). The text form prints it before the text. Lines
 * written by clv_log have the event "log". */
void clv_log_event(clv_log_level level, const char *event, const char *fmt, ...) CLV_PRINTF(3, 4);

/* Key for rate limiting of log lines: the peer that caused the line (an identity or address) and
 * the kind of event (static text such as "denied calls"). */
typedef struct clv_log_source {
  const char *peer, *event_kind;
  /* number of lines that the source may write in a minute; 0: ten. In the minute after one in which
   * lines were dropped, the source may write ten. */
  unsigned burst;
} clv_log_source;

/* As clv_log_event, for lines that a peer causes: writes a limited number of lines a minute for
 * each source (clv_log_source.burst). Further lines are dropped and counted; when the minute is
 * over, a line reports how many. `event`: static text; "log": the line has no event name. Call
 * clv_log_limited_tick regularly, so that this report does not wait for the next line.
 * Thread-safe. */
void clv_log_limited(clv_log_level level, const char *event, const clv_log_source *source,
                     const char *fmt, ...) CLV_PRINTF(4, 5);
void clv_log_limited_tick(void);

/* State of the rate limiter for one source. began_ms: start of its minute; n_written, n_dropped:
 * lines written and dropped in the minute. */
typedef struct clv_log_entry {
  uint64_t hash, began_ms, n_dropped;
  unsigned n_written;
  bool is_used;
  bool had_drops; /* lines were dropped in the minute before */
  clv_log_level level;
  const char *event, *event_kind;
  char peer[128];
} clv_log_entry;

typedef struct clv_log_limiter {
  void (*report_dropped)(void *user, const clv_log_entry *entry);
  void *user;
  clv_log_entry entries[256];
} clv_log_limiter;

/* True if a line of this source may be written at the time now_ms, which must not decrease from
 * call to call. Else counts the line as dropped. */
bool clv_log_limiter_pass(clv_log_limiter *l, clv_log_level level, const char *event,
                          const clv_log_source *source, uint64_t now_ms) CLV_USE_RESULT;
void clv_log_limiter_tick(clv_log_limiter *l, uint64_t now_ms);

/* Sets the NAME in the lines of clv_notice (a static string). clv_notice writes a line for the user
 * who started the program, at any log level: `NAME: text`, or a JSON object if clv_log_set chose
 * JSON. */
void clv_log_set_program(const char *name);
void clv_notice(clv_log_level level, const char *event, const char *fmt, ...) CLV_PRINTF(3, 4);

/* Callback for a message that a library reports to the user and that is no error. The program
 * prints or logs it (tests/check-logging). notify NULL: messages are dropped. */
typedef struct clv_notifier {
  void (*notify)(void *user, const char *text);
  void *user;
} clv_notifier;

void clv_notify(clv_notifier to, const char *fmt, ...) CLV_PRINTF(2, 3);

/* Writes a time as "2026-01-31T12:00:00.000Z"; returns text. */
char *clv_time_text(uint64_t wall_ms, char text[32]);

/* ---- the limit of open files ----------------------------------------------------------------- */

/* Raises this process's limit of open files (RLIMIT_NOFILE) to the hard limit. */
void clv_open_files_raise(void);
/* Checks that `n` more files can be opened now. CLV_EXHAUSTED names the limit and what to do;
 * without this check, libraries that run out of descriptors report misleading errors. */
clv_code clv_open_files_check(unsigned n, clv_err *err) CLV_USE_RESULT;

/* ---- clocks and interrupts ------------------------------------------------------------------- */

uint64_t clv_now_ns(void); /* nanoseconds of the monotonic clock */

/* The user has asked the process to end (Ctrl-C). cleave-master's signal handler calls
 * clv_interrupt; libcleave and the worker never do. Calls that wait for a worker poll the request a
 * few times a second, and then return CLV_CANCELLED. clv_ms_since_interrupt returns the
 * milliseconds since the request; 0: there was none. */
void clv_interrupt(void); /* async-signal-safe */
uint64_t clv_ms_since_interrupt(void);
/* Withdraws the request after the caller has followed it, so that later calls are not cancelled by
 * it. */
void clv_interrupt_handled(void);
/* Returns CLV_CANCELLED if the user has asked the process to end. */
clv_code clv_interrupt_check(clv_err *err) CLV_USE_RESULT;
uint64_t clv_wall_ms(void); /* milliseconds since 1970; for texts and records only */

/* Clock of the engine and the folders below it, passed as an argument so that a simulation can use
 * its own. now_ns NULL: clv_now_ns. */
typedef struct clv_clock {
  uint64_t (*now_ns)(void *user); /* must be thread-safe: several threads call it */
  void *user;
} clv_clock;

static inline uint64_t clv_clock_now(const clv_clock *clock) {
  return clock->now_ns ? clock->now_ns(clock->user) : clv_now_ns();
}

/* ---- SHA-256 digests ------------------------------------------------------------------------- */

typedef struct clv_sha256 {
  uint8_t bytes[32];
} clv_sha256;

clv_code clv_sha256_of(const void *data, size_t len, clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
/* As clv_sha256_of, for large data: polls `cancel_hook` between parts of the data. CLV_CANCELLED:
 * cancel_hook->should_stop() returned true. */
clv_code clv_sha256_cancellable(const clv_cancel_hook *cancel_hook, const void *data, size_t len,
                                clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_sha256_file(const char *path, clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
/* Computes the digest of the first `bytes` bytes of a file. Does not move the descriptor's offset.
 * cancel_hook NULL: never cancelled. CLV_DATA_LOSS: the file has fewer bytes, or cannot be read. */
clv_code clv_sha256_fd(int fd, uint64_t bytes, const clv_cancel_hook *cancel_hook,
                       const char *label, clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
/* Digest of data that arrive in parts: call clv_sha256_begin, clv_sha256_add for each part, then
 * clv_sha256_end, after which the object can only be freed. */
typedef struct clv_sha256_parts clv_sha256_parts;
clv_code clv_sha256_begin(clv_sha256_parts **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_sha256_add(clv_sha256_parts *d, const void *data, size_t len,
                        clv_err *err) CLV_USE_RESULT;
clv_code clv_sha256_end(clv_sha256_parts *d, clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
void clv_sha256_parts_freep(clv_sha256_parts **d); /* for CLV_AUTO */
void clv_sha256_hex(const clv_sha256 *digest, char hex[65]);
/* false: `hex` is not exactly 64 hex digits */
bool clv_sha256_parse(const char *hex, clv_sha256 *ret);
/* clv_hex_parse converts exactly 2 * n hex digits to n bytes; clv_hex converts n bytes to 2 * n
 * digits and a NUL. */
bool clv_hex_parse(const char *hex, uint8_t *ret, size_t n);
void clv_hex(const uint8_t *bytes, size_t n, char *ret);

/* HMAC-SHA256 (RFC 2104). Someone without the secret cannot check a guess of `data` against the
 * result. */
clv_code clv_hmac_sha256(const clv_sha256 *secret, const void *data, size_t len, clv_sha256 *ret,
                         clv_err *err) CLV_USE_RESULT;

/* ---- keys of random generators --------------------------------------------------------------- */

/* Key of a random generator: a session's seed, or derived from one by clv_key_derive. */
typedef struct clv_key {
  uint8_t bytes[16];
} clv_key;

enum { CLV_KEY_MAX_INPUT = 64 };

/* Derives a key: the first 16 bytes of SHA-256(domain, NUL, seed, the len <= CLV_KEY_MAX_INPUT
 * bytes at `of`). A derived key reveals neither the seed nor other keys. */
clv_code clv_key_derive(const char *domain, const clv_key *seed, const void *of, size_t len,
                        clv_key *ret, clv_err *err) CLV_USE_RESULT;

/* Returns the CRC32C (Castagnoli, iSCSI) of `data`, continued from `crc` (0 to start). */
uint32_t clv_crc32c(uint32_t crc, const void *data, size_t len);

/* Fills in bytes from the system's random generator; used for ids, never for training. */
clv_code clv_random_bytes(void *ret, size_t len, clv_err *err) CLV_USE_RESULT;

/* ---- counter-based random numbers ------------------------------------------------------------ */

/* Philox4x32-10 (Salmon et al., SC'11). The four words depend on key and counter alone, so an
 * element gets the same number on every device and in any order. */
typedef struct clv_rng_key {
  uint64_t seed, seed_high; /* two halves of a clv_key, or a number */
  uint64_t step;            /* training step, 0 for initialisation */
  uint32_t micro_batch;     /* index of the micro-batch within the step */
  uint32_t layer;           /* (index of the layer in the uncut graph << 4) + parameter slot */
} clv_rng_key;

/* Returns a clv_rng_key with this key as seed; the other fields are 0. */
clv_rng_key clv_rng_key_of(const clv_key *key);

/* Inputs of Philox4x32-10 for the stream of a key: block i has the counter {i, counter...}. For
 * devices that draw the numbers themselves. */
typedef struct clv_rng_stream {
  uint32_t counter[3], key[2];
} clv_rng_stream;
clv_rng_stream clv_rng_stream_of(const clv_rng_key *key);

/* Computes block `index` of a stream: four random words. */
void clv_rng_stream_block(const clv_rng_stream *s, uint32_t index, uint32_t ret[4]);

/* Derives the stream of row `row` of part `part` from s: its key and half of its counter are block
 * `part` of s. So numbers with three indices do not depend on the extents of these indices. */
clv_rng_stream clv_rng_stream_row(const clv_rng_stream *s, uint32_t part, uint32_t row);

/* Writes the four words of block `index` of the stream of `key`. */
void clv_rng_block(const clv_rng_key *key, uint32_t index, uint32_t ret[4]);

/* dst[i] is uniform in [low, high): made of the top 24 bits of word i%4 of block i/4, divided by
 * 2^24. dst: [n] f32. */
void clv_rng_uniform(const clv_rng_key *key, float low, float high, float *dst, size_t n);
/* As clv_rng_uniform, but skips the first `from` numbers; `from` is a multiple of 4. */
void clv_rng_uniform_from(const clv_rng_key *key, size_t from, float low, float high, float *dst,
                          size_t n);

/* dst[i] is normal with this mean and standard deviation (Box-Muller on words 2j and 2j+1 of
 * the random stream of `key`, in double precision). _from skips the first `from` numbers; `from` is
 * a multiple of 4. dst: [n] f32. */
void clv_rng_normal(const clv_rng_key *key, float mean, float std, float *dst, size_t n);
void clv_rng_normal_from(const clv_rng_key *key, size_t from, float mean, float std, float *dst,
                         size_t n);

/* Writes a seeded permutation of 0..n-1 (Fisher-Yates from the end), used to shuffle an epoch. */
void clv_rng_permutation(const clv_rng_key *key, uint32_t *dst, size_t n);

#ifdef __cplusplus
}
#endif
#endif
