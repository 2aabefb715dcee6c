/* SPDX-License-Identifier: Apache-2.0
 *
 * base: what every other folder stands on. Result codes and located errors, checked size
 * arithmetic, scope-bound clean-up, growing byte strings, logging, a monotonic clock, digests and
 * the counter-based random generator.
 *
 * Threads: every function may be called from any thread unless it says otherwise. Nothing here
 * keeps state except the log level.
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
  CLV_INVALID = 3, /* an argument, a file or a message is wrong in itself */
  CLV_DEADLINE = 4,
  CLV_NOT_FOUND = 5,
  CLV_EXISTS = 6,
  CLV_DENIED = 7,       /* authenticated, but not allowed */
  CLV_EXHAUSTED = 8,    /* a quota, a limit or memory */
  CLV_PRECONDITION = 9, /* right call, wrong state */
  CLV_ABORTED = 10,
  CLV_RANGE = 11,
  CLV_UNIMPLEMENTED = 12,
  CLV_INTERNAL = 13,
  CLV_UNAVAILABLE = 14,
  CLV_DATA_LOSS = 15, /* damaged bytes: a checksum or a format that does not hold */
  CLV_UNAUTHENTICATED = 16,
  /* a peer's answer makes no sense; of this process alone, never on the wire */
  CLV_BAD_ANSWER = 17,
} clv_code;

/* Lower-case name of a code ("not found"); "unknown" for values outside the list. */
const char *clv_code_name(clv_code code);

enum { CLV_ERR_TEXT = 480, CLV_ERR_PLACE = 64, CLV_ERR_ELEMENT = 32 };

/* A failure, on the caller's stack. `where` is "file:line" of the code that failed; `text` quotes
 * the offending setting, shape or size and the limit. An element of a tensor is never in the text,
 * which may travel: it stands in `element`, for the person whose process this is. Never allocates,
 * so it works when memory is gone. */
typedef struct clv_err {
  clv_code code;
  const char *where; /* static string */
  char text[CLV_ERR_TEXT];
  char place[CLV_ERR_PLACE];     /* the op that failed: "layer 3 (embedding), forward", or "" */
  char element[CLV_ERR_ELEMENT]; /* "987654", or "" */
} clv_err;

#define CLV_STR2(x) #x
#define CLV_STR(x) CLV_STR2(x)
#define CLV_HERE __FILE__ ":" CLV_STR(__LINE__)
#define CLV_USE_RESULT __attribute__((warn_unused_result))
#define CLV_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Fill *err (which may be NULL) and return `code`. Use through clv_fail. */
clv_code clv_fail_at(const char *where, clv_err *err, clv_code code, const char *fmt, ...)
    CLV_PRINTF(4, 5);
#define clv_fail(err, code, ...) clv_fail_at(CLV_HERE, (err), (code), __VA_ARGS__)

/* Say which element was wrong, of an error that has just been filled. Returns its code. */
clv_code clv_err_element(clv_err *err, const char *fmt, ...) CLV_PRINTF(2, 3);

/* Put "prefix: " before the text, for context on the way up. Returns err's code
 * (CLV_INTERNAL when err is NULL). */
clv_code clv_err_prefix(clv_err *err, const char *fmt, ...) CLV_PRINTF(2, 3);

/* Return early with the code of a call that failed: the one macro here that changes control
 * flow. */
#define CLV_TRY(call)                                  \
  do {                                                 \
    clv_code clv_try_code_ = (call);                   \
    if (clv_try_code_ != CLV_OK) return clv_try_code_; \
  } while (0)

/* ---- scope-bound clean-up -------------------------------------------------------------------- */

/* Letting go of nothing is fine: every function whose name ends in _free, _unref, _done, _close,
 * _release or _stop, in any folder, takes NULL for what it lets go of, and does nothing. (Static
 * ones may not; tests/closers.py has the others, and what ends so by chance.) */

/* CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL; -- the function gets &t at scope end. */
#define CLV_AUTO(fn) __attribute__((cleanup(fn)))

/* Hand a scope-bound pointer over: *ret_t = clv_steal(&t). */
#define clv_steal(pp)                 \
  (__extension__({                    \
    __typeof__(*(pp)) clv_s_ = *(pp); \
    *(pp) = NULL;                     \
    clv_s_;                           \
  }))

void clv_freep(void *pp); /* frees *(void **)pp */

/* What a noun ends in behind a number: "%u session%s", n, CLV_S(n). */
#define CLV_S(n) ((n) == 1 ? "" : "s")

#define CLV_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define CLV_MIN(a, b) ((a) < (b) ? (a) : (b))
#define CLV_MAX(a, b) ((a) > (b) ? (a) : (b))

/* ---- memory and sizes ------------------------------------------------------------------------ */

/* True and the product/sum in *ret, or false on overflow (*ret untouched). */
bool clv_mul_size(size_t a, size_t b, size_t *ret);
bool clv_add_size(size_t a, size_t b, size_t *ret);
size_t clv_align_up(size_t n, size_t alignment_pow2);

/* Zeroed memory for n items of `size` bytes, or CLV_EXHAUSTED (overflow included). n*size == 0
 * gives a valid pointer of one byte. The caller frees with free(). */
clv_code clv_alloc(size_t n, size_t size, void *ret_pp, clv_err *err) CLV_USE_RESULT;

/* Who waits for what takes long. Asked now and then, by whoever does it. */
typedef struct clv_cancel_hook {
  bool (*gone)(void *user); /* nobody wants it any more: a deadline has passed, a caller has left */
  void *user;
} clv_cancel_hook;

/* CLV_CANCELLED when the waiter is gone; a waiter of NULL never is. */
clv_code clv_cancel_hook_check(const clv_cancel_hook *waiter, clv_err *err) CLV_USE_RESULT;

/* memset to 0 of much, while somebody waits for it; else CLV_CANCELLED. */
clv_code clv_zero_cancellable(const clv_cancel_hook *waiter, void *at, size_t bytes,
                              clv_err *err) CLV_USE_RESULT;

/* What memory this process may have, and what says so. */
typedef struct clv_host_memory {
  uint64_t bytes; /* 0: nobody knows */
  char of[64];    /* "this host's memory", "the control group's memory.max" */
} clv_host_memory;

/* root: "", or a folder that stands for /. */
void clv_host_memory_read(const char *root, clv_host_memory *ret);

/* 64-byte aligned, not zeroed; free() releases it. Counted in clv_alloc_count. */
clv_code clv_alloc_aligned(size_t bytes, void *ret_pp, clv_err *err) CLV_USE_RESULT;

/* How often clv_alloc, clv_alloc_aligned, clv_strdup and growing byte strings took memory in this
 * process; the hot path keeps it constant (a test reads it). */
uint64_t clv_alloc_count(void);

clv_code clv_strdup(const char *text, char **ret_copy, clv_err *err) CLV_USE_RESULT;

/* ---- growing byte strings -------------------------------------------------------------------- */

/* Zero-initialise to start ({0}); `data` is NUL-terminated after every append. A failed append
 * sets `failed` and later appends do nothing, so that one check at the end is enough. */
typedef struct clv_bytes {
  char *data;
  size_t len, cap; /* bytes */
  bool failed;
} clv_bytes;

void clv_bytes_done(clv_bytes *b); /* frees and zeroes; usable with CLV_AUTO */
void clv_bytes_add(clv_bytes *b, const void *data, size_t len);
void clv_bytes_puts(clv_bytes *b, const char *text);
void clv_bytes_printf(clv_bytes *b, const char *fmt, ...) CLV_PRINTF(2, 3);
/* A quoted, escaped JSON string; what is not UTF-8 becomes U+FFFD. */
void clv_bytes_json(clv_bytes *b, const char *text);
/* Text of a manual page: nothing in it is taken for roff's own. */
void clv_bytes_roff(clv_bytes *b, const char *text);

/* Whole file into *ret (replacing it). Refuses files over max_bytes with CLV_EXHAUSTED, missing
 * ones with CLV_NOT_FOUND; what is not a regular file with CLV_INVALID. */
clv_code clv_file_read(const char *path, size_t max_bytes, clv_bytes *ret,
                       clv_err *err) CLV_USE_RESULT;

/* Write PATH.tmp, fsync, rename over PATH, fsync the folder: the file is there whole or not at
 * all. */
clv_code clv_file_write_durable(const char *path, const void *data, size_t len, unsigned mode,
                                clv_err *err) CLV_USE_RESULT;

/* fsync of the folder that a file is in: a name that is new there stays. */
clv_code clv_file_sync_folder(const char *path, clv_err *err) CLV_USE_RESULT;

/* Create a folder and its missing parents (mode 0755 & ~umask). */
clv_code clv_mkdirs(const char *path, clv_err *err) CLV_USE_RESULT;

/* Whether it may name a file that a peer speaks of: 1..CLV_FILE_NAME of [A-Za-z0-9._-], no dot
 * first. So it is no path, and nothing hidden. */
enum { CLV_FILE_NAME = 128 };
bool clv_is_file_name(const char *name);

/* ---- text ------------------------------------------------------------------------------------ */

/* `text` as it is, or its beginning and "..." where it has `size` bytes or more; no character of
 * UTF-8 is cut. size: at least 4. Returns dst. */
const char *clv_text_truncate(const char *text, char *dst, size_t size);

/* What is not printable ASCII becomes '?': text of a peer or a library, on its way to a
 * terminal. */
void clv_text_to_printable(char *text);

/* The same for text of people, which may be UTF-8: its control characters alone become '?', but for
 * line ends and tabs. */
void clv_text_sanitize_utf8(const char *text, clv_bytes *out);

/* Why bind() or listen() failed, and what helps. */
const char *clv_bind_error_text(int error);

/* Levenshtein-nearest of n candidates within distance 3 (and half the word's length), or NULL. */
const char *clv_did_you_mean(const char *word, const char *const *candidates, size_t n);

/* "64MiB", "1.5 GiB", "1k", "250" -> bytes (k/M/G = 1000s, Ki/Mi/Gi = 1024s, B optional). */
clv_code clv_parse_size(const char *text, uint64_t *ret_bytes, clv_err *err) CLV_USE_RESULT;

/* "30s", "250ms", "2m", "1h" -> milliseconds. */
clv_code clv_parse_duration(const char *text, uint64_t *ret_ms, clv_err *err) CLV_USE_RESULT;

/* "1.5 MiB" into buf (at least 16 bytes); returns buf. */
char *clv_format_size(uint64_t bytes, char *buf, size_t len);

/* "UTF-16" or "UTF-32" where a text begins with the byte order mark of one, or with ASCII
 * characters of UTF-16; NULL: neither. */
const char *clv_text_utf16_or_32(const void *text, size_t len);

/* Bytes (1..4) and code point of the UTF-8 character (RFC 3629) at text, where `left` >= 1 bytes
 * are, SIZE_MAX for text that ends in a NUL. 0 when there is none: cut short, overlong, a surrogate
 * or above U+10FFFF; *ret_point is then untouched. */
size_t clv_utf8(const void *text, size_t left, uint32_t *ret_point);
/* U+0000..U+001F and U+007F..U+009F, which terminals obey. */
bool clv_is_control(uint32_t point);

/* ---- log ------------------------------------------------------------------------------------- */

typedef enum clv_log_level {
  CLV_LOG_ERROR,
  CLV_LOG_WARN,
  CLV_LOG_INFO,
  CLV_LOG_DEBUG
} clv_log_level;

const char *clv_log_level_name(clv_log_level level); /* "warn" */

/* Lines on standard error: `time level text`, or JSON objects with time, level, event and message.
 * Where that is systemd's journal ($JOURNAL_STREAM) a line starts with its priority, as in "<4>".
 * Library folders log at debug only; the programs log the rest. */
void clv_log_set(clv_log_level level, bool json);
void clv_log(clv_log_level level, const char *fmt, ...) CLV_PRINTF(2, 3);
/* The same with a word for what happened ("ready"), which the text form puts before the text; those
 * of clv_log are "log". */
void clv_log_event(clv_log_level level, const char *event, const char *fmt, ...) CLV_PRINTF(3, 4);

/* What makes a line: `who` caused it, an identity or an address, and `what` it is in a few words,
 * static text ("denied calls"). */
typedef struct clv_log_source {
  const char *who, *what;
  /* lines of its first minute; 0: ten, as in each later minute of one that goes on */
  unsigned burst;
} clv_log_source;

/* The same for lines that a peer causes: those over the number of lines a minute are left out, and
 * counted in a line of their own when the minute is over. `event` is static text, "log" for none.
 * clv_log_limited_tick is to be called now and then, so that the count is told without a next line.
 * Any thread. */
void clv_log_limited(clv_log_level level, const char *event, const clv_log_source *source,
                     const char *fmt, ...) CLV_PRINTF(4, 5);
void clv_log_limited_tick(void);

/* What decides about them, for a clock of any kind. One thread at a time. Zeroed but for the first
 * two fields it is ready; left_out is told what was left out, and must not call it. */
typedef struct clv_log_entry {
  uint64_t hash, began_ms, left_out;
  unsigned passed;
  bool used, noisy;
  clv_log_level level;
  const char *event, *what;
  char who[128];
} clv_log_entry;

typedef struct clv_log_limiter {
  void (*left_out)(void *user, const clv_log_entry *entry);
  void *user;
  clv_log_entry entries[256];
} clv_log_limiter;

/* Whether a line of this source is to be written at now_ms, which never goes back. */
bool clv_log_limiter_pass(clv_log_limiter *l, clv_log_level level, const char *event,
                          const clv_log_source *source, uint64_t now_ms) CLV_USE_RESULT;
void clv_log_limiter_tick(clv_log_limiter *l, uint64_t now_ms);

/* What a program tells the person who started it, at whatever level the log is: `NAME: text`, or a
 * JSON object as above. `name` is a static string. */
void clv_log_set_program(const char *name);
void clv_notice(clv_log_level level, const char *event, const char *fmt, ...) CLV_PRINTF(3, 4);

/* Where a library hands a fact up that a person should know and no error carries: the program that
 * gave it says it, or logs it (tests/check-logging). Zeroed: nobody is told. */
typedef struct clv_notifier {
  void (*notify)(void *user, const char *text);
  void *user;
} clv_notifier;

void clv_notify(clv_notifier to, const char *fmt, ...) CLV_PRINTF(2, 3);

/* "2026-01-31T12:00:00.000Z" */
char *clv_time_text(uint64_t wall_ms, char text[32]);

/* ---- descriptors ----------------------------------------------------------------------------- */

/* Raises this process's limit of open files (RLIMIT_NOFILE) as far as it may. */
void clv_open_files_raise(void);
/* CLV_EXHAUSTED, with the limit and what to do, unless `n` more files can be opened now: libraries
 * that find none left blame what they were reading. */
clv_code clv_open_files_check(unsigned n, clv_err *err) CLV_USE_RESULT;

/* ---- time ------------------------------------------------------------------------------------ */

uint64_t clv_now_ns(void); /* monotonic */

/* The person at the terminal wants this process to end. A signal handler of cleave-master notes it,
 * once; calls that wait for a worker look at it a few times a second and end with CLV_CANCELLED.
 * libcleave and the worker never note it. Returns for how long it has been so, 0: it is not. */
void clv_interrupt(void); /* safe in a signal handler */
uint64_t clv_interrupted_ms(void);
clv_code clv_interrupt_check(clv_err *err) CLV_USE_RESULT; /* CLV_CANCELLED: it is so */
uint64_t clv_wall_ms(void); /* milliseconds since 1970, for people and records only */

/* Where the engine and what lies below it have the time from: handed in, so that a simulation can
 * hand in its own. now_ns NULL: clv_now_ns. */
typedef struct clv_clock {
  uint64_t (*now_ns)(void *user); /* any thread */
  void *user;
} clv_clock;

static inline uint64_t clv_clock_now(const clv_clock *clock) {
  return clock->now_ns ? clock->now_ns(clock->user) : clv_now_ns();
}

/* ---- digests --------------------------------------------------------------------------------- */

typedef struct clv_sha256 {
  uint8_t bytes[32];
} clv_sha256;

clv_code clv_sha256_of(const void *data, size_t len, clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
/* The same of much, while somebody waits for it; else CLV_CANCELLED. */
clv_code clv_sha256_cancellable(const clv_cancel_hook *waiter, const void *data, size_t len,
                                clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_sha256_file(const char *path, clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
/* Of a file's bytes from 0 to `bytes`, wherever the descriptor stands, which stays there; `waiter`
 * NULL: nobody leaves. CLV_DATA_LOSS: it has fewer, or cannot be read. */
clv_code clv_sha256_fd(int fd, uint64_t bytes, const clv_cancel_hook *waiter, const char *label,
                       clv_sha256 *ret, clv_err *err) CLV_USE_RESULT;
void clv_sha256_hex(const clv_sha256 *digest, char hex[65]);
bool clv_sha256_parse(const char *hex, clv_sha256 *ret); /* 64 hex digits, nothing else */
/* 2 * n hex digits, nothing else, to n bytes; the same back, with the NUL. */
bool clv_hex_parse(const char *hex, uint8_t *ret, size_t n);
void clv_hex(const uint8_t *bytes, size_t n, char *ret);

/* HMAC-SHA256 (RFC 2104): without the secret nobody can try what the text may be. */
clv_code clv_hmac_sha256(const clv_sha256 *secret, const void *data, size_t len, clv_sha256 *ret,
                         clv_err *err) CLV_USE_RESULT;

/* ---- keys ------------------------------------------------------------------------------------ */

/* What random numbers follow from: of a session (its seed), or derived from that one way. */
typedef struct clv_key {
  uint8_t bytes[16];
} clv_key;

enum { CLV_KEY_MAX_INPUT = 64 };

/* The first 16 bytes of SHA-256(domain, NUL, seed, the len <= CLV_KEY_MAX_INPUT bytes at `of`).
 * Whoever has one key can compute neither the seed nor another key. */
clv_code clv_key_derive(const char *domain, const clv_key *seed, const void *of, size_t len,
                        clv_key *ret, clv_err *err) CLV_USE_RESULT;

/* CRC32C (Castagnoli, iSCSI): crc of `data` continued from `crc` (0 to start). */
uint32_t clv_crc32c(uint32_t crc, const void *data, size_t len);

/* Bytes from the system's generator (ids, never training numbers). */
clv_code clv_random_bytes(void *ret, size_t len, clv_err *err) CLV_USE_RESULT;

/* ---- counter-based random numbers ------------------------------------------------------------ */

/* Philox4x32-10 (Salmon et al., SC'11): the four words depend on key and counter alone, so the
 * same element gets the same number wherever a layer runs and in whatever order. */
typedef struct clv_rng_key {
  uint64_t seed, seed_high; /* the two halves of a clv_key, or a number */
  uint64_t step;            /* training step, 0 for initialisation */
  uint32_t micro_batch;     /* index within the step */
  uint32_t layer;           /* index in the uncut graph, shifted left 4, plus parameter slot */
} clv_rng_key;

/* With that key, the rest 0. */
clv_rng_key clv_rng_key_of(const clv_key *key);

/* What Philox4x32-10 is given for the stream of a key: block i has {i, counter...}. For devices
 * that draw numbers themselves. */
typedef struct clv_rng_stream {
  uint32_t counter[3], key[2];
} clv_rng_stream;
clv_rng_stream clv_rng_stream_of(const clv_rng_key *key);

/* Block `index` of a stream. */
void clv_rng_stream_block(const clv_rng_stream *s, uint32_t index, uint32_t ret[4]);

/* Row `row` of part `part` of a stream, a stream of its own: its key and half of its counter are
 * block `part` of s. What is numbered by three indices gets numbers that do not depend on how many
 * there are of each. */
clv_rng_stream clv_rng_stream_row(const clv_rng_stream *s, uint32_t part, uint32_t row);

/* Four 32-bit words for block `index` of the stream named by `key`. */
void clv_rng_block(const clv_rng_key *key, uint32_t index, uint32_t ret[4]);

/* dst[i] uniform in [low, high): word i%4 of block i/4, top 24 bits / 2^24. dst: [n] f32. */
void clv_rng_uniform(const clv_rng_key *key, float low, float high, float *dst, size_t n);
/* The n that follow the first `from`, a multiple of 4. */
void clv_rng_uniform_from(const clv_rng_key *key, size_t from, float low, float high, float *dst,
                          size_t n);

/* dst[i] normal with the given mean and standard deviation (Box-Muller on words 2j, 2j+1 in
 * double precision). dst: [n] f32. */
void clv_rng_normal(const clv_rng_key *key, float mean, float std, float *dst, size_t n);
void clv_rng_normal_from(const clv_rng_key *key, size_t from, float mean, float std, float *dst,
                         size_t n);

/* A seeded permutation of 0..n-1 (Fisher-Yates from the end), used to shuffle an epoch. */
void clv_rng_permutation(const clv_rng_key *key, uint32_t *dst, size_t n);

#ifdef __cplusplus
}
#endif
#endif
