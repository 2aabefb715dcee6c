/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes event files for TensorBoard. An event file is a list of records. Each record is one
 * protobuf message (Event), framed by its length and masked CRC32Cs. This file encodes the few
 * fields of Event that it needs. All scalars of a step are in one event.
 *
 * TensorBoard reads the files of a folder in the order of their names, which contain the time. An
 * event with a SessionLog START and a step makes TensorBoard drop the records of this step and of
 * later steps in older files. So a resumed run replaces the steps that it repeats.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/report/report_int.h"

enum {
  MAX_PENDING_BYTES = 1 << 16, /* bytes of pending events at which a flush is due */
  MAX_NAME_ATTEMPTS = 100,     /* most names that are tried for a new file */
};

struct clv_event_file {
  clv_sink file;
  /* messages while they are encoded, and framed events that wait for the next flush. The buffers
   * are reused, so a step allocates nothing once they have grown. */
  clv_bytes value, summary, event, pending_events;
};

/* ---- encoding of protobuf messages ----------------------------------------------------------- */

/* Wire types of protobuf. */
enum { VARINT = 0, FIXED64 = 1, LENGTH_DELIMITED = 2, FIXED32 = 5 };

/* Field numbers of tensorboard's event.proto, summary.proto, tensor.proto and
 * tensor_shape.proto. */
enum {
  EVENT_WALL_TIME_FIELD = 1,
  EVENT_STEP_FIELD = 2,
  EVENT_FILE_VERSION_FIELD = 3,
  EVENT_SUMMARY_FIELD = 5,
  EVENT_SESSION_LOG_FIELD = 7,
  SESSION_LOG_STATUS_FIELD = 1,
  SUMMARY_VALUE_FIELD = 1,
  VALUE_TAG_FIELD = 1,
  VALUE_SIMPLE_FIELD = 2,
  VALUE_TENSOR_FIELD = 8,
  VALUE_METADATA_FIELD = 9,
  METADATA_PLUGIN_FIELD = 1,
  PLUGIN_NAME_FIELD = 1,
  TENSOR_DTYPE_FIELD = 1,
  TENSOR_STRING_FIELD = 8,
};
enum { SESSION_START = 1, DT_STRING = 7 };

static void put_varint(clv_bytes *b, uint64_t v) {
  uint8_t text[10];
  size_t n = 0;
  for (; v >= 0x80; v >>= 7) text[n++] = (uint8_t)(v | 0x80);
  text[n++] = (uint8_t)v;
  clv_bytes_add(b, text, n);
}

static void put_field_key(clv_bytes *b, unsigned field, unsigned type) {
  put_varint(b, field << 3 | type);
}

static void put_number_field(clv_bytes *b, unsigned field, uint64_t v) {
  put_field_key(b, field, VARINT);
  put_varint(b, v);
}

static void put_bytes_field(clv_bytes *b, unsigned field, const void *data, size_t len) {
  put_field_key(b, field, LENGTH_DELIMITED);
  put_varint(b, len);
  clv_bytes_add(b, data, len);
}

static void put_text_field(clv_bytes *b, unsigned field, const char *text) {
  put_bytes_field(b, field, text, strlen(text));
}

/* Appends the n low bytes of v, the lowest first. */
static void put_little_endian(clv_bytes *b, uint64_t v, size_t n) {
  uint8_t bytes[8];
  for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(v >> 8 * i);
  clv_bytes_add(b, bytes, n);
}

static void put_double_field(clv_bytes *b, unsigned field, double v) {
  uint64_t bits;
  memcpy(&bits, &v, sizeof bits);
  put_field_key(b, field, FIXED64);
  put_little_endian(b, bits, 8);
}

static void put_float_field(clv_bytes *b, unsigned field, float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  put_field_key(b, field, FIXED32);
  put_little_endian(b, bits, 4);
}

/* ---- records of an event file ---------------------------------------------------------------- */

/* Returns the CRC32C of `data` in the masked form of record files (TFRecord): rotated right by 15
 * bits, plus a constant. */
static uint32_t masked_crc(const void *data, size_t len) {
  uint32_t crc = clv_crc32c(0, data, len);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Begins e->event with the present time and the step. */
static void begin_event(clv_event_file *e, uint64_t step) {
  e->event.len = 0;
  put_double_field(&e->event, EVENT_WALL_TIME_FIELD, (double)clv_wall_ms() / 1e3);
  if (step) put_number_field(&e->event, EVENT_STEP_FIELD, step);
}

/* Appends e->event, framed as a record of the file, to e->pending_events. */
static void end_event(clv_event_file *e) {
  size_t start = e->pending_events.len;
  put_little_endian(&e->pending_events, e->event.len, 8);
  if (!e->pending_events.failed)
    put_little_endian(&e->pending_events, masked_crc(e->pending_events.data + start, 8), 4);
  clv_bytes_add(&e->pending_events, e->event.data, e->event.len);
  put_little_endian(&e->pending_events, masked_crc(e->event.data, e->event.len), 4);
  e->pending_events.failed |= e->event.failed || e->summary.failed || e->value.failed;
  e->event.failed = e->summary.failed = e->value.failed = false;
  if (e->pending_events.len >= MAX_PENDING_BYTES || e->pending_events.failed)
    clv_event_file_flush(e);
}

/* Writes the pending events. If memory ran out for one event, drops all pending events instead. */
void clv_event_file_flush(clv_event_file *e) {
  if (!e) return;
  if (!e->pending_events.failed)
    clv_sink_write(&e->file, e->pending_events.data, e->pending_events.len);
  e->pending_events.failed = false;
  e->pending_events.len = 0;
}

/* Appends the encoded value in e->value to the message in e->summary, and empties e->value. */
static void add_value(clv_event_file *e) {
  put_bytes_field(&e->summary, SUMMARY_VALUE_FIELD, e->value.data, e->value.len);
  e->value.len = 0;
}

/* Appends an event that has the message in e->summary. */
static void add_summary(clv_event_file *e, uint64_t step) {
  begin_event(e, step);
  put_bytes_field(&e->event, EVENT_SUMMARY_FIELD, e->summary.data, e->summary.len);
  e->summary.len = 0;
  end_event(e);
}

void clv_event_file_add_scalars(clv_event_file *e, uint64_t step, const clv_scalar *scalars,
                                size_t n) {
  if (!e || !n) return;
  for (size_t i = 0; i < n; i++) {
    put_text_field(&e->value, VALUE_TAG_FIELD, scalars[i].tag);
    put_float_field(&e->value, VALUE_SIMPLE_FIELD, (float)scalars[i].value);
    add_value(e);
  }
  add_summary(e, step);
}

/* Encodes a Summary.Value with the tag, a tensor of dtype string without dimensions that has the
 * text, and metadata that names the plugin "text". */
void clv_event_file_add_text(clv_event_file *e, uint64_t step, const char *tag,
                             const char *markdown) {
  CLV_AUTO(clv_bytes_done) clv_bytes plugin = {0}, inner = {0};
  if (!e) return;
  put_text_field(&e->value, VALUE_TAG_FIELD, tag);
  put_number_field(&inner, TENSOR_DTYPE_FIELD, DT_STRING);
  put_text_field(&inner, TENSOR_STRING_FIELD, markdown);
  put_bytes_field(&e->value, VALUE_TENSOR_FIELD, inner.data, inner.len);
  put_text_field(&plugin, PLUGIN_NAME_FIELD, "text");
  inner.len = 0;
  put_bytes_field(&inner, METADATA_PLUGIN_FIELD, plugin.data, plugin.len);
  put_bytes_field(&e->value, VALUE_METADATA_FIELD, inner.data, inner.len);
  e->value.failed |= plugin.failed || inner.failed;
  add_value(e);
  add_summary(e, step);
}

/* ---- opening an event file ------------------------------------------------------------------- */

/* Returns the seconds in the name of an event file; 0: the name is not that of an event file. */
static uint64_t parse_file_time(const char *name) {
  static const char prefix[] = "events.out.tfevents.";
  const char *at = name + sizeof prefix - 1;
  if (strncmp(name, prefix, sizeof prefix - 1) != 0 || strspn(at, "0123456789") != 10) return 0;
  return strtoull(at, NULL, 10);
}

/* Returns the seconds for the name of a new file: now, or later than every file of the folder, so
 * that TensorBoard reads the new file last. Two runs may begin within a second, and clocks may be
 * set back. */
static uint64_t choose_file_time(const char *folder) {
  uint64_t seconds = clv_wall_ms() / 1000;
  DIR *dir = opendir(folder);
  for (struct dirent *d; dir && (d = readdir(dir));)
    seconds = CLV_MAX(seconds, parse_file_time(d->d_name) + 1);
  if (dir) closedir(dir);
  return CLV_MIN(seconds, (uint64_t)9999999999); /* ten digits, or the names would not sort */
}

/* Writes the host name to `host`, with '_' for characters other than letters, digits, '-' and
 * '_'. */
static void get_host_name(char host[65]) {
  if (gethostname(host, 64) != 0) strcpy(host, "unknown");
  host[64] = '\0';
  for (char *p = host; *p; p++)
    if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", *p)) *p = '_';
}

static clv_code create_file(clv_event_file *e, const char *folder, clv_err *err) {
  clv_code code = CLV_EXISTS;
  char host[65];
  get_host_name(host);
  uint64_t seconds = choose_file_time(folder);
  for (int i = 0; i < MAX_NAME_ATTEMPTS && code == CLV_EXISTS; i++) {
    clv_bytes path = {0};
    clv_bytes_printf(&path, "%s/events.out.tfevents.%010llu.%s.%ld.%d", folder,
                     (unsigned long long)seconds, host, (long)getpid(), i);
    code = clv_sink_open(path.data, CLV_SINK_NEW, &e->file, err);
  }
  return code;
}

clv_code clv_event_file_open(const char *folder, uint64_t step, clv_notifier notifier,
                             clv_event_file **ret, clv_err *err) {
  CLV_AUTO(clv_event_file_closep) clv_event_file *e = NULL;
  CLV_TRY(clv_alloc(1, sizeof *e, &e, err));
  e->file.fd = -1;
  CLV_TRY(clv_mkdirs(folder, err));
  CLV_TRY(create_file(e, folder, err));
  e->file.notifier = notifier;
  begin_event(e, 0);
  put_text_field(&e->event, EVENT_FILE_VERSION_FIELD, "brain.Event:2");
  end_event(e);
  begin_event(e, step);
  put_number_field(&e->value, SESSION_LOG_STATUS_FIELD, SESSION_START);
  put_bytes_field(&e->event, EVENT_SESSION_LOG_FIELD, e->value.data, e->value.len);
  e->value.len = 0;
  end_event(e);
  clv_event_file_flush(e);
  *ret = clv_steal(&e);
  return CLV_OK;
}

void clv_event_file_close(clv_event_file *e) {
  if (!e) return;
  clv_event_file_flush(e);
  clv_sink_close(&e->file);
  clv_bytes_done(&e->value);
  clv_bytes_done(&e->summary);
  clv_bytes_done(&e->event);
  clv_bytes_done(&e->pending_events);
  free(e);
}

void clv_event_file_closep(clv_event_file **e) { clv_event_file_close(*e); }
