/* SPDX-License-Identifier: Apache-2.0
 *
 * Hello. Each encoder of a unary message decodes its result: set-up calls are rare, so the rules
 * are written once, in the decoder, and nothing is sent that the peer would refuse.
 */
#include <string.h>

#include "common/net/wire/unary_int.h"

/* ---- the messages Limits and Artifact -------------------------------------------------------- */

clv_wire_limits clv_wire_limits_default(void) {
  return (clv_wire_limits){
      .sessions = 8,
      .tensors = 4096,
      .concurrent_calls = 64,
      .session_bytes = (uint64_t)64 << 30,
      .message_bytes = 64 << 20,
      .chunk_bytes = 1 << 20,
      .credit_bytes = 64 << 20,
      .peer_timeout_ms = 60000,
  };
}

_Static_assert(CLV_WIRE_MIN_MESSAGE >= CLV_WIRE_CHUNK_BYTES + 2 * CLV_WIRE_HEAD_MAX +
                                           CLV_WIRE_BUNDLED * CLV_WIRE_BUNDLE_PREFIX,
               "a chunk, its head and what goes in front fit a message");
_Static_assert(CLV_WIRE_MIN_MESSAGE >= CLV_WIRE_UNARY_MAX, "and so does a unary one");

clv_code clv_wire_limits_check(const clv_wire_limits *theirs, clv_err *err) {
  const struct {
    const char *what, *fix;
    uint64_t limit, needed_bytes;
  } rows[] = {{"messages", "limits.message_size of its worker.yaml", theirs->message_bytes,
               CLV_WIRE_MIN_MESSAGE},
              {"chunks", "Limits.chunk_bytes", theirs->chunk_bytes, CLV_WIRE_CHUNK_BYTES}};
  for (size_t i = 0; i < CLV_COUNT(rows); i++)
    if (rows[i].limit && rows[i].limit < rows[i].needed_bytes)
      return clv_fail(err, CLV_UNAVAILABLE,
                      "it accepts %s of at most %llu bytes, and pieces of tensors need %llu: raise "
                      "%s",
                      rows[i].what, (unsigned long long)rows[i].limit,
                      (unsigned long long)rows[i].needed_bytes, rows[i].fix);
  return CLV_OK;
}

uint32_t clv_wire_shorter_timeout(uint32_t ours_ms, uint32_t theirs_ms) {
  return theirs_ms ? CLV_MAX(CLV_MIN(ours_ms, theirs_ms), (uint32_t)1000) : ours_ms;
}

void clv_limits_encode(const clv_wire_limits *limits, Cleave__V1__Limits *ret) {
  cleave__v1__limits__init(ret);
  ret->sessions = limits->sessions;
  ret->tensors = limits->tensors;
  ret->session_bytes = limits->session_bytes;
  ret->message_bytes = limits->message_bytes;
  ret->chunk_bytes = limits->chunk_bytes;
  ret->credit_bytes = limits->credit_bytes;
  ret->concurrent_calls = limits->concurrent_calls;
  ret->peer_timeout_ms = limits->peer_timeout_ms;
}

/* Reads Limits. An absent message has all fields 0, as everywhere in proto3. */
clv_code clv_limits_decode(const Cleave__V1__Limits *limits, clv_wire_limits *ret, clv_err *err) {
  if (!limits) {
    *ret = (clv_wire_limits){0};
    return CLV_OK;
  }
  const uint64_t bytes[] = {limits->session_bytes, limits->message_bytes, limits->chunk_bytes,
                            limits->credit_bytes};
  for (size_t i = 0; i < CLV_COUNT(bytes); i++)
    if (bytes[i] > CLV_WIRE_BYTES_MAX)
      return clv_fail(err, CLV_INVALID, "a limit of %llu bytes is over %llu",
                      (unsigned long long)bytes[i], (unsigned long long)CLV_WIRE_BYTES_MAX);
  *ret = (clv_wire_limits){
      .sessions = limits->sessions,
      .tensors = limits->tensors,
      .concurrent_calls = limits->concurrent_calls,
      .session_bytes = limits->session_bytes,
      .message_bytes = limits->message_bytes,
      .chunk_bytes = limits->chunk_bytes,
      .credit_bytes = limits->credit_bytes,
      .peer_timeout_ms = limits->peer_timeout_ms,
  };
  return CLV_OK;
}

void clv_artifact_encode(const clv_wire_artifact *artifact, Cleave__V1__Artifact *ret) {
  cleave__v1__artifact__init(ret);
  ret->name = clv_text_or_empty(artifact->name);
  ret->sha256 = clv_proto_bytes(artifact->sha256.bytes, sizeof artifact->sha256.bytes);
}

/* Reads an artifact. Its name is that of a file on the worker's disk, so it may contain only
 * letters that cannot leave a folder, and no leading dot. */
clv_code clv_artifact_decode(const Cleave__V1__Artifact *artifact, clv_wire_artifact *ret,
                             clv_err *err) {
  CLV_TRY(clv_check_name(artifact->name, "artifact name", err));
  for (const char *p = artifact->name; *p; p++) {
    bool is_letter_or_digit =
        (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9');
    if (!is_letter_or_digit && *p != '_' && *p != '-' && (*p != '.' || p == artifact->name))
      return clv_fail(err, CLV_INVALID, "artifact name \"%s\" may contain only [A-Za-z0-9._-]",
                      artifact->name);
  }
  ret->name = artifact->name;
  return clv_decode_sha256(artifact->sha256, "artifact digest", &ret->sha256, err);
}

/* ---- names of devices ------------------------------------------------------------------------ */

bool clv_wire_device_is_cpu(const char *device) { return strncmp(device, "cpu", 3) == 0; }

static bool selects_device(const char *name, const char *device) {
  if (!name || !name[0] || strcmp(name, "auto") == 0) return !clv_wire_device_is_cpu(device);
  if (strcmp(name, "cuda") == 0) return strncmp(device, "cuda:", 5) == 0;
  return strcmp(name, device) == 0;
}

int clv_wire_find_device(const clv_wire_hello_reply *h, const char *name) {
  bool is_any_device = !name || !name[0] || strcmp(name, "auto") == 0;
  for (uint32_t i = 0; i < h->n_devices; i++)
    if (selects_device(name, h->device_names[i])) return (int)i;
  return is_any_device && h->n_devices ? 0 : -1;
}

/* ---- the message About ----------------------------------------------------------------------- */

clv_code clv_about_encode(const clv_wire_about *about, clv_wire_mem *mem, clv_about_parts *parts,
                          clv_err *err) {
  Cleave__V1__About *to = &parts->about;
  Cleave__V1__Library *libraries;
  cleave__v1__about__init(to);
  clv_limits_encode(&about->limits, &parts->limits);
  CLV_TRY(clv_alloc_proto_array(mem, about->n_libraries, sizeof *libraries, &to->libraries,
                                &libraries, err));
  for (uint32_t i = 0; i < about->n_libraries; i++) {
    cleave__v1__library__init(&libraries[i]);
    libraries[i].name = clv_text_or_empty(about->libraries[i].name);
    libraries[i].version = clv_text_or_empty(about->libraries[i].version);
  }
  to->protocol = about->protocol;
  to->n_capabilities = about->n_capabilities;
  to->capabilities = (char **)(uintptr_t)about->capabilities;
  to->limits = &parts->limits;
  to->software = clv_text_or_empty(about->software);
  to->isa = clv_text_or_empty(about->isa);
  to->n_libraries = about->n_libraries;
  to->unix_ms = about->unix_ms;
  return CLV_OK;
}

clv_code clv_about_decode(const Cleave__V1__About *from, clv_wire_mem *mem, clv_wire_about *ret,
                          clv_err *err) {
  if (!from) return clv_fail(err, CLV_INVALID, "`about` is missing");
  if (from->protocol < CLV_WIRE_PROTOCOL_MIN || from->protocol > CLV_WIRE_PROTOCOL)
    return clv_fail(err, CLV_UNIMPLEMENTED,
                    "the peer speaks protocol %u, this side speaks %d to %d: upgrade the older one",
                    from->protocol, CLV_WIRE_PROTOCOL_MIN, CLV_WIRE_PROTOCOL);
  CLV_TRY(clv_check_count(from->n_capabilities, CLV_WIRE_LIST, "capabilities", err));
  CLV_TRY(clv_check_count(from->n_libraries, CLV_WIRE_LIST, "libraries", err));
  *ret = (clv_wire_about){
      .protocol = from->protocol,
      .n_capabilities = (uint32_t)from->n_capabilities,
      .n_libraries = (uint32_t)from->n_libraries,
      .capabilities = (const char **)from->capabilities,
      .software = from->software,
      .isa = from->isa,
      .unix_ms = from->unix_ms,
  };
  CLV_TRY(clv_limits_decode(from->limits, &ret->limits, err));
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_libraries, sizeof *ret->libraries, &ret->libraries, err));
  for (size_t i = 0; i < from->n_libraries; i++)
    ret->libraries[i] = (clv_wire_library){from->libraries[i]->name, from->libraries[i]->version};
  return CLV_OK;
}

/* ---- the request of Hello -------------------------------------------------------------------- */

clv_code clv_wire_hello_request_decode(const clv_piece *pieces, size_t n_pieces,
                                       clv_wire_hello_request *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__HelloRequest *from;
  clv_wire_hello_request m = {0};
  CLV_TRY(
      clv_wire_unpack(&cleave__v1__hello_request__descriptor, pieces, n_pieces, &mem, &from, err));
  CLV_TRY(clv_about_decode(from->about, mem, &m.about, err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

clv_code clv_wire_hello_request_encode(const clv_wire_hello_request *message, clv_bytes *ret,
                                       clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  clv_about_parts about_parts;
  Cleave__V1__HelloRequest to = CLEAVE__V1__HELLO_REQUEST__INIT;
  CLV_TRY(clv_wire_mem_new(CLV_ENCODED_ARRAY_BYTES(message->about.n_libraries, Cleave__V1__Library),
                           &mem, err));
  CLV_TRY(clv_about_encode(&message->about, mem, &about_parts, err));
  to.about = &about_parts.about;
  CLV_TRY(clv_wire_pack(&to.base, ret, err));
  CLV_AUTO(clv_wire_message_clear) clv_wire_hello_request back = {0};
  return clv_wire_hello_request_decode(&(clv_piece){ret->data, ret->len}, 1, &back, err);
}

/* ---- versions of the protocol ---------------------------------------------------------------- */

bool clv_wire_protocol_has_acks(uint32_t protocol) {
  return protocol >= CLV_WIRE_PROTOCOL_WITH_ACKS;
}

bool clv_wire_has_capability(const clv_wire_about *about, const char *capability) {
  for (uint32_t i = 0; i < about->n_capabilities; i++)
    if (strcmp(about->capabilities[i], capability) == 0) return true;
  return false;
}

clv_code clv_wire_hello_exchange(const clv_wire_about *about,
                                 clv_code (*call)(void *user, const clv_bytes *request,
                                                  clv_bytes *reply, clv_err *err),
                                 void *user, clv_bytes *ret_reply, clv_err *err) {
  clv_err first = {0};
  clv_wire_hello_request q = {.about = *about};
  for (q.about.protocol = CLV_WIRE_PROTOCOL;; q.about.protocol--) {
    CLV_AUTO(clv_bytes_done) clv_bytes request = {0};
    CLV_TRY(clv_wire_hello_request_encode(&q, &request, err));
    clv_code code = call(user, &request, ret_reply, err);
    if (code != CLV_UNIMPLEMENTED) return code;
    if (q.about.protocol == CLV_WIRE_PROTOCOL) first = *err;
    if (q.about.protocol == CLV_WIRE_PROTOCOL_MIN) break;
  }
  *err = first;
  return first.code;
}

/* ---- the reply of Hello ---------------------------------------------------------------------- */

static clv_code decode_artifacts(const Cleave__V1__HelloReply *from, clv_wire_hello_reply *m,
                                 clv_wire_mem *mem, clv_err *err) {
  CLV_TRY(clv_check_count(from->n_artifacts, CLV_WIRE_LIST, "artifacts", err));
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_artifacts, sizeof *m->artifacts, &m->artifacts, err));
  m->n_artifacts = (uint32_t)from->n_artifacts;
  for (size_t i = 0; i < from->n_artifacts; i++)
    CLV_TRY(clv_artifact_decode(from->artifacts[i], &m->artifacts[i], err));
  return CLV_OK;
}

static const char *library_version_of(const clv_wire_about *a, const char *name) {
  for (uint32_t i = 0; i < a->n_libraries; i++)
    if (strcmp(a->libraries[i].name, name) == 0) return a->libraries[i].version;
  return "";
}

/* Derives the kind of a device of an older worker, which reports only the instruction set of its
 * first device. */
static clv_wire_device_kind derive_device_kind(const clv_wire_hello_reply *m, const char *name) {
  bool is_cpu = clv_wire_device_is_cpu(name);
  bool is_of_first_device = strcmp(m->device_names[0], name) == 0 ||
                            (is_cpu && clv_wire_device_is_cpu(m->device_names[0]));
  return (clv_wire_device_kind){
      .kind = is_cpu                           ? "cpu"
              : strncmp(name, "cuda:", 5) == 0 ? "cuda"
                                               : name,
      .isa = is_of_first_device ? m->about.isa : "",
      .libraries = library_version_of(&m->about, is_cpu ? "kernels" : name)};
}

static clv_code decode_device_kinds(const Cleave__V1__HelloReply *from, clv_wire_hello_reply *m,
                                    clv_wire_mem *mem, clv_err *err) {
  if (from->n_kinds && from->n_kinds != from->n_devices)
    return clv_fail(err, CLV_INVALID, "%zu kinds for %zu devices; the numbers must be equal",
                    from->n_kinds, from->n_devices);
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_devices, sizeof *m->device_kinds, &m->device_kinds, err));
  for (size_t i = 0; i < from->n_devices; i++) {
    const Cleave__V1__DeviceKind *k = from->n_kinds ? from->kinds[i] : NULL;
    CLV_TRY(clv_check_name(from->devices[i], "name of a device", err));
    if (k) CLV_TRY(clv_check_name(k->kind, "kind of device", err));
    m->device_kinds[i] = k ? (clv_wire_device_kind){k->kind, k->isa, k->libraries}
                           : derive_device_kind(m, from->devices[i]);
  }
  return CLV_OK;
}

clv_code clv_wire_hello_reply_decode(const clv_piece *pieces, size_t n_pieces,
                                     clv_wire_hello_reply *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__HelloReply *from;
  CLV_TRY(
      clv_wire_unpack(&cleave__v1__hello_reply__descriptor, pieces, n_pieces, &mem, &from, err));
  CLV_TRY(clv_check_count(from->n_devices, CLV_WIRE_LIST, "devices", err));
  clv_wire_hello_reply m = {
      .worker_name = from->worker,
      .n_cores = from->cores,
      .n_threads = from->threads,
      .n_devices = (uint32_t)from->n_devices,
      .device_names = (const char **)from->devices,
  };
  CLV_TRY(clv_about_decode(from->about, mem, &m.about, err));
  CLV_TRY(clv_decode_id(from->incarnation, "incarnation", &m.incarnation, err));
  CLV_TRY(clv_check_name(from->worker, "worker name", err));
  CLV_TRY(decode_artifacts(from, &m, mem, err));
  CLV_TRY(decode_device_kinds(from, &m, mem, err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

static clv_code encode_device_kinds(const clv_wire_hello_reply *from, clv_wire_mem *mem,
                                    Cleave__V1__HelloReply *to, clv_err *err) {
  Cleave__V1__DeviceKind *kinds;
  if (!from->device_kinds) return CLV_OK;
  CLV_TRY(clv_alloc_proto_array(mem, from->n_devices, sizeof *kinds, &to->kinds, &kinds, err));
  for (uint32_t i = 0; i < from->n_devices; i++) {
    cleave__v1__device_kind__init(&kinds[i]);
    kinds[i].kind = clv_text_or_empty(from->device_kinds[i].kind);
    kinds[i].isa = clv_text_or_empty(from->device_kinds[i].isa);
    kinds[i].libraries = clv_text_or_empty(from->device_kinds[i].libraries);
  }
  to->n_kinds = from->n_devices;
  return CLV_OK;
}

clv_code clv_wire_hello_reply_encode(const clv_wire_hello_reply *message, clv_bytes *ret,
                                     clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  clv_about_parts about_parts;
  Cleave__V1__Artifact *artifacts;
  Cleave__V1__HelloReply to = CLEAVE__V1__HELLO_REPLY__INIT;
  CLV_TRY(
      clv_wire_mem_new(CLV_ENCODED_ARRAY_BYTES(message->about.n_libraries, Cleave__V1__Library) +
                           CLV_ENCODED_ARRAY_BYTES(message->n_artifacts, Cleave__V1__Artifact) +
                           CLV_ENCODED_ARRAY_BYTES(message->n_devices, Cleave__V1__DeviceKind),
                       &mem, err));
  CLV_TRY(clv_about_encode(&message->about, mem, &about_parts, err));
  CLV_TRY(clv_alloc_proto_array(mem, message->n_artifacts, sizeof *artifacts, &to.artifacts,
                                &artifacts, err));
  for (uint32_t i = 0; i < message->n_artifacts; i++)
    clv_artifact_encode(&message->artifacts[i], &artifacts[i]);
  to.about = &about_parts.about;
  to.incarnation = clv_proto_bytes(&message->incarnation, sizeof message->incarnation);
  to.worker = clv_text_or_empty(message->worker_name);
  to.cores = message->n_cores;
  to.threads = message->n_threads;
  to.n_devices = message->n_devices;
  to.devices = (char **)(uintptr_t)message->device_names;
  to.n_artifacts = message->n_artifacts;
  CLV_TRY(encode_device_kinds(message, mem, &to, err));
  CLV_TRY(clv_wire_pack(&to.base, ret, err));
  CLV_AUTO(clv_wire_message_clear) clv_wire_hello_reply back = {0};
  return clv_wire_hello_reply_decode(&(clv_piece){ret->data, ret->len}, 1, &back, err);
}
