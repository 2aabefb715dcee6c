/* SPDX-License-Identifier: Apache-2.0
 *
 * Every key of worker.yaml.
 */
#include "common/model/config/schema_int.h"

#define AT(member) offsetof(clv_worker_config, member)
#define ALLOW(member) offsetof(clv_allow_spec, member)
#define PEER(member) offsetof(clv_remote_spec, member)
#define ARTIFACT(member) offsetof(clv_artifact_spec, member)

enum { MINUTE_MS = 60000, DAY_MS = 86400000 };

static const char *const role_names[] = {"master", "peer", "observer", NULL};
static const char *const memory_words[] = {"auto", "none", NULL};
static const char *const readable_names[] = {"trained", "all", "none", NULL};
static const char *const level_names[] = {"error", "warn", "info", "debug", NULL};

_Static_assert(offsetof(clv_artifact_spec, name) == sizeof(clv_config_pos), "see schema_int.h");

/* Each row describes one key. */
/* clang-format off */
static const clv_row rows[] = {
    {.path = "listen", .kind = CLV_ROW_TEXT, .offset = AT(listen), .pos_offset = AT(listen_pos),
     .format = CLV_FORMAT_LISTEN, .default_text = "127.0.0.1:7443",
     .doc = "Address at which the daemon listens; loopback unless given."},
    {.path = "name", .kind = CLV_ROW_TEXT, .offset = AT(name), .format = CLV_FORMAT_NAME,
     .is_in_example = true, .sample = "worker-1",
     .doc = "Name of the worker in log lines and health answers."},

    {.path = "tls", .kind = CLV_ROW_SECTION, .pos_offset = AT(tls.pos), .required = true,
     .doc = "The worker's credentials; read again on SIGHUP."},
    {.path = "tls.ca", .kind = CLV_ROW_PATH, .offset = AT(tls.ca), .required = true,
     .sample = "certs/ca.pem",
     .doc = "Certificates of the authorities that must have signed a caller's certificate."},
    {.path = "tls.cert", .kind = CLV_ROW_PATH, .offset = AT(tls.cert), .required = true,
     .sample = "certs/worker-1.pem", .doc = "The worker's certificate chain."},
    {.path = "tls.key", .kind = CLV_ROW_PATH, .offset = AT(tls.key), .required = true,
     .sample = "certs/worker-1.key", .doc = "The worker's private key."},

    {.path = "tls.crl", .kind = CLV_ROW_PATH, .offset = AT(tls.crl), .sample = "certs/crl.pem", .is_commented_out = true,
     .doc = "Lists of revoked certificates, one of each CA; an expired list refuses all peers."},

    {.path = "allow", .kind = CLV_ROW_LIST, .offset = AT(allow), .count_offset = AT(n_allow),
     .entry_bytes = sizeof(clv_allow_spec), .min = 1, .required = true,
     .doc = "Identities that may call, each given by the one URI in the caller's certificate. "
            "Every other caller is refused."},
    {.path = "allow[].identity", .kind = CLV_ROW_TEXT, .offset = ALLOW(identity),
     .format = CLV_FORMAT_URI, .required = true, .sample = "spiffe://example.net/master",
     .doc = "The caller's URI."},
    {.path = "allow[].role", .kind = CLV_ROW_ENUM, .offset = ALLOW(role), .names = role_names,
     .required = true, .sample = "master",
     .doc = "A master opens sessions, a peer speaks in sessions that name it, an observer asks "
            "for health and status."},
    {.path = "allow[].sessions", .kind = CLV_ROW_INT, .offset = ALLOW(sessions), .max = 10000,
     .default_text = "0",
     .doc = "Sessions that the identity may have open; 0 is limits.sessions."},
    {.path = "allow[].bytes", .kind = CLV_ROW_SIZE, .offset = ALLOW(bytes), .max = 1ull << 50,
     .default_text = "0",
     .doc = "Memory that all sessions of the identity may use together; 0 is "
            "limits.session_bytes for each."},
    {.path = "allow[].tensors", .kind = CLV_ROW_INT, .offset = ALLOW(tensors), .max = 10000000,
     .default_text = "0",
     .doc = "Tensors that all sessions of the identity may hold together; 0 is limits.tensors "
            "for each."},
    {.path = "allow[].calls", .kind = CLV_ROW_INT, .offset = ALLOW(calls), .max = 10000000,
     .default_text = "0",
     .doc = "Calls of modules that may wait or run in all sessions of the identity together; 0 "
            "is limits.calls for each."},
    {.path = "allow[].connections", .kind = CLV_ROW_INT, .offset = ALLOW(connections), .max = 65535,
     .default_text = "0",
     .doc = "Connections that the identity may have open; 0 is limits.identity_connections."},
    {.path = "allow[].state_bytes", .kind = CLV_ROW_SIZE, .offset = ALLOW(state_bytes),
     .max = 1ull << 50, .default_text = "0",
     .doc = "Bytes of state files that the identity may keep in state_dir, each file rounded up "
            "to 4 KiB; 0 is none."},
    {.path = "allow[].cache_bytes", .kind = CLV_ROW_SIZE, .offset = ALLOW(cache_bytes),
     .max = 1ull << 50, .default_text = "0",
     .doc = "Bytes of caches (outputs of frozen first stages) that the identity may keep in "
            "state_dir; 0 is none."},
    {.path = "allow[].weight", .kind = CLV_ROW_INT, .offset = ALLOW(weight), .min = 1,
     .max = 1000, .default_text = "1",
     .doc = "Weight of the identity's share of the cores while others compute too: twice the "
            "weight, twice the time."},

    {.path = "peers", .kind = CLV_ROW_LIST, .offset = AT(peers), .count_offset = AT(n_peers),
     .entry_bytes = sizeof(clv_remote_spec), .is_commented_out = true,
     .doc = "Workers that this worker may connect to for direct transfers. A master names them, "
            "and never gives an address."},
    {.path = "peers[].name", .kind = CLV_ROW_TEXT, .offset = PEER(name),
     .format = CLV_FORMAT_NAME, .required = true, .sample = "worker-2",
     .doc = "Name that masters use for the peer."},
    {.path = "peers[].address", .kind = CLV_ROW_TEXT, .offset = PEER(address),
     .format = CLV_FORMAT_ADDRESS, .required = true, .sample = "worker-2.example.net:7443",
     .doc = "Host and port at which the peer listens."},
    {.path = "peers[].identity", .kind = CLV_ROW_TEXT, .offset = PEER(identity),
     .format = CLV_FORMAT_URI, .required = true, .sample = "spiffe://example.net/worker/worker-2",
     .doc = "URI that the peer's certificate must contain."},

    {.path = "limits", .kind = CLV_ROW_SECTION,
     .doc = "Limits of a session, and of an identity where `allow` sets none."},
    {.path = "limits.sessions", .kind = CLV_ROW_INT, .offset = AT(limits.sessions), .min = 1,
     .max = 10000, .default_text = "8",
     .doc = "Sessions that an identity may have open."},
    {.path = "limits.tensors", .kind = CLV_ROW_INT, .offset = AT(limits.tensors), .min = 1,
     .max = 10000000, .default_text = "4096",
     .doc = "Tensors that a session may hold."},
    {.path = "limits.calls", .kind = CLV_ROW_INT, .offset = AT(limits.calls), .min = 1,
     .max = 10000000, .default_text = "65536",
     .doc = "Calls of modules that may wait or run in a session."},
    {.path = "limits.session_bytes", .kind = CLV_ROW_SIZE, .offset = AT(limits.session_bytes),
     .min = 1 << 20, .max = 1ull << 50, .default_text = "64GiB",
     .doc = "Memory of a session: weights, optimiser state and tensors."},
    {.path = "limits.message_size", .kind = CLV_ROW_SIZE, .offset = AT(limits.message_bytes),
     .min = 512 << 10, .max = 1 << 30, .default_text = "64MiB",
     .doc = "Largest single message. Four of these and 1 MiB for each of limits.connections are what "
            "the transport may take, at most half of memory_limit."},
    {.path = "limits.concurrent_calls", .kind = CLV_ROW_INT, .offset = AT(limits.concurrent_calls),
     .min = 1, .max = 100000, .default_text = "64",
     .doc = "Requests and streams of an identity that may be served at the same time; a session "
            "needs about six."},
    {.path = "limits.connections", .kind = CLV_ROW_INT, .offset = AT(limits.connections), .min = 1,
     .max = 65535, .default_text = "256",
     .doc = "Connections of all callers together, an eighth of them reserved for handshakes; a "
            "session needs about six."},
    {.path = "limits.identity_connections", .kind = CLV_ROW_INT,
     .offset = AT(limits.identity_connections), .min = 1, .max = 65535, .default_text = "64",
     .doc = "Connections that an identity may have open; the handshake of one more fails."},
    {.path = "limits.receive_window", .old_name = "credit", .kind = CLV_ROW_SIZE, .offset = AT(limits.credit_bytes),
     .min = 65536, .max = 1ull << 40, .default_text = "64MiB",
     .doc = "Bytes that a session's stream may have in flight to this worker."},
    {.path = "limits.lease", .kind = CLV_ROW_DURATION, .offset = AT(limits.lease_ms),
     .pos_offset = AT(limits.lease_pos), .min = 1000, .max = DAY_MS, .default_text = "120s",
     .doc = "A session whose master has no connection for this time is closed, and its memory "
            "freed. Also the time for which a lost connection to another worker is made again."},
    {.path = "limits.peer_timeout", .kind = CLV_ROW_DURATION,
     .offset = AT(limits.peer_timeout_ms), .min = 1000, .max = 60 * MINUTE_MS, .default_text = "15s",
     .doc = "A connection to a master or a peer that is silent for this time is closed; shorter "
            "than limits.lease."},
    {.path = "limits.reference_lease", .kind = CLV_ROW_DURATION,
     .offset = AT(limits.reference_lease_ms), .min = 1000, .max = DAY_MS, .default_text = "1h",
     .doc = "Maximum limits.reference_lease of a session: time for which values kept for a node "
            "that has died are not freed."},
    {.path = "limits.handshake_timeout", .kind = CLV_ROW_DURATION,
     .offset = AT(limits.handshake_timeout_ms), .min = 100, .max = 10 * MINUTE_MS, .default_text = "3s",
     .doc = "Time for a new connection to finish its TLS handshake."},

    {.path = "device", .kind = CLV_ROW_TEXT, .offset = AT(device), .format = CLV_FORMAT_WORKER_DEVICE,
     .default_text = "cpu",
     .doc = "Device that stages compute on. `cleave-worker devices` lists the devices of this "
            "host."},
    {.path = "cuda", .kind = CLV_ROW_SECTION, .is_commented_out = true,
     .doc = "NVIDIA devices: where their libraries are, and how they are used."},
    {.path = "cuda.library", .kind = CLV_ROW_PATH, .offset = AT(cuda.library),
     .sample = "/usr/local/lib/cleave/libcleave_cuda.so",
     .doc = "Cleave's library for NVIDIA devices. Unless given, it is searched for beside "
            "cleave-worker and in ../lib/cleave."},
    {.path = "cuda.folders", .kind = CLV_ROW_TEXTS, .offset = AT(cuda.folders),
     .sample = "[/usr/local/cuda/lib64]",
     .doc = "Folders with NVIDIA's libcublasLt and libcudnn, searched before the system's "
            "folders."},
    {.path = "cuda.plans", .kind = CLV_ROW_PATH, .offset = AT(cuda.plans_folder),
     .sample = "/var/lib/cleave-worker/plans",
     .doc = "Folder in which cuDNN's plans of convolutions are kept for the next start. Only "
            "the worker's user may write there."},
    {.path = "cuda.graphs", .kind = CLV_ROW_BOOL, .offset = AT(cuda.graphs), .default_text = "true",
     .doc = "Submit device work that repeats as one CUDA graph. The bits are the same."},
    {.path = "cpu_devices", .kind = CLV_ROW_INT, .offset = AT(cpu_devices), .min = 1, .max = 8,
     .default_text = "1",
     .doc = "Number of CPU devices: with 2 there are cpu:0 and cpu:1 in addition to cpu. Each "
            "device has its own memory account; all share the cores."},
    {.path = "device_memory", .kind = CLV_ROW_SIZE, .offset = AT(device_memory), .max = 1ull << 50,
     .default_text = "0",
     .doc = "Maximum memory of all modules on one device; 0 is no limit."},
    {.path = "cores", .kind = CLV_ROW_NUMBERS, .offset = AT(cores),
     .pos_offset = AT(cores_pos), .min = 1, .high = 1023,
     .sample = "[0, 1]", .is_commented_out = true,
     .doc = "Cores, as numbered by the system, to which compute threads are pinned; all cores "
            "unless given."},
    {.path = "memory_limit", .kind = CLV_ROW_SIZE, .offset = AT(memory_limit),
     .names = memory_words, .min = 1 << 20, .max = 1ull << 50, .default_text = "auto",
     .doc = "Maximum memory of all sessions together; auto is four fifths of what the process "
            "may use: the host's memory, or the limit of its control group."},

    {.path = "artifacts", .kind = CLV_ROW_MAP, .offset = AT(artifacts), .count_offset = AT(n_artifacts),
     .entry_bytes = sizeof(clv_artifact_spec), .format = CLV_FORMAT_RUN, .sample = "front-v1",
     .is_commented_out = true,
     .doc = "Weight files on this host that a master may use by name. A master never gives a "
            "path."},
    {.path = "artifacts{}.file", .kind = CLV_ROW_PATH, .offset = ARTIFACT(file),
     .sample = "weights/front-v1.safetensors",
     .doc = "Path of a safetensors file."},
    {.path = "artifacts{}.folder", .kind = CLV_ROW_PATH, .offset = ARTIFACT(folder),
     .is_commented_out = true, .sample = "weights/bert-base",
     .doc = "Or the path of a folder of such files, with the ARTIFACT.json that cleave-master "
            "artifact wrote. Only files with tensors that a session needs are read."},
    {.path = "artifacts{}.sha256", .kind = CLV_ROW_TEXT, .offset = ARTIFACT(sha256),
     .format = CLV_FORMAT_SHA256, .required = true,
     .sample = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
     .doc = "SHA-256 that the file must have; for a folder, that of its ARTIFACT.json."},
    {.path = "artifacts{}.shared", .kind = CLV_ROW_BOOL, .offset = ARTIFACT(shared),
     .default_text = "false",
     .doc = "Keep the frozen parameters in memory once for all identities, not once for each "
            "identity. Each session is charged as if it did not share them."},
    {.path = "artifacts{}.readable", .kind = CLV_ROW_ENUM, .offset = ARTIFACT(readable),
     .names = readable_names, .default_text = "trained",
     .doc = "Parameters of the artifact that masters may read: the trained ones, all, or none. "
            "With none, a session that would train one is refused."},

    {.path = "state_dir", .kind = CLV_ROW_PATH, .offset = AT(state_dir),
     .sample = "/var/lib/cleave-worker",
     .doc = "Folder for data that outlive the process: the attempts of sessions that have run "
            "here, and the state files and caches of identities with allow[].state_bytes or "
            "cache_bytes."},
    {.path = "cache_ttl", .kind = CLV_ROW_DURATION, .offset = AT(cache_ttl_ms), .min = 1000,
     .max = 365ull * DAY_MS, .default_text = "24h",
     .doc = "A cache that has not been used for this time is deleted; earlier if its session "
            "says so."},
    {.path = "log", .kind = CLV_ROW_SECTION, .doc = "Log lines on standard error."},
    {.path = "log.level", .kind = CLV_ROW_ENUM, .offset = AT(log.level), .names = level_names,
     .default_text = "info",
     .doc = "Lowest level of the lines that are written."},
    {.path = "log.json", .kind = CLV_ROW_BOOL, .offset = AT(log.json), .default_text = "false",
     .doc = "Write JSON objects, one per line; --log-format overrides this."},
    {.path = "log.lines", .kind = CLV_ROW_INT, .offset = AT(log.lines_per_minute), .min = 10, .max = 1000000,
     .default_text = "40",
     .doc = "Lines per minute for an identity's session opens, for its closes and for its "
            "loads. Further lines are only counted, and the identity has ten lines in the next "
            "minute."},
    {.path = "drain_timeout", .kind = CLV_ROW_DURATION, .offset = AT(drain_timeout_ms),
     .max = DAY_MS, .default_text = "30s",
     .doc = "On SIGTERM, time for running sessions to finish."},
    {.path = "metrics", .kind = CLV_ROW_SECTION, .is_commented_out = true,
     .doc = "Metrics and health over plain HTTP: /metrics for Prometheus, /healthz, /readyz. No "
            "port is open unless this is given. The port serves no tensors, and has no "
            "authentication."},
    {.path = "metrics.listen", .kind = CLV_ROW_TEXT, .offset = AT(metrics.listen),
     .pos_offset = AT(metrics.listen_pos), .format = CLV_FORMAT_LISTEN, .required = true,
     .sample = "127.0.0.1:9101",
     .doc = "Address of the metrics port, on loopback or a management network; must differ from "
            "`listen`."},
};
/* clang-format on */

const clv_schema *clv_worker_schema(void) {
  static const clv_schema schema = {
      .rows = rows,
      .n_rows = CLV_COUNT(rows),
      .title = "worker.yaml",
      .subject = "a worker daemon",
      .doc =
          "One worker daemon: where it listens, who may call, and what they may use. Paths start "
          "at the folder of this file. Every key can be overridden, as in CLEAVE_LOG__LEVEL=debug "
          "or --set log.level=debug.",
  };
  return &schema;
}
