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

/* A key is a row, its fields in reading order. */
/* clang-format off */
static const clv_row rows[] = {
    {.path = "listen", .kind = CLV_ROW_TEXT, .offset = AT(listen), .pos = AT(listen_pos),
     .format = CLV_FORMAT_LISTEN, .initial = "127.0.0.1:7443",
     .doc = "Where the daemon listens; loopback unless you say otherwise."},
    {.path = "name", .kind = CLV_ROW_TEXT, .offset = AT(name), .format = CLV_FORMAT_NAME,
     .is_in_example = true, .sample = "worker-1", .doc = "Name in log lines and health answers."},

    {.path = "tls", .kind = CLV_ROW_SECTION, .pos = AT(tls.pos), .required = true,
     .doc = "The worker's credentials; read again on SIGHUP."},
    {.path = "tls.ca", .kind = CLV_ROW_PATH, .offset = AT(tls.ca), .required = true,
     .sample = "certs/ca.pem", .doc = "Certificate authorities that callers must be signed by."},
    {.path = "tls.cert", .kind = CLV_ROW_PATH, .offset = AT(tls.cert), .required = true,
     .sample = "certs/worker-1.pem", .doc = "The worker's certificate chain."},
    {.path = "tls.key", .kind = CLV_ROW_PATH, .offset = AT(tls.key), .required = true,
     .sample = "certs/worker-1.key", .doc = "The worker's private key."},

    {.path = "tls.crl", .kind = CLV_ROW_PATH, .offset = AT(tls.crl), .sample = "certs/crl.pem", .commented = true,
     .doc = "Lists of revoked certificates, one of each CA; an expired list refuses all peers."},

    {.path = "allow", .kind = CLV_ROW_LIST, .offset = AT(allow), .count = AT(n_allow),
     .entry_bytes = sizeof(clv_allow_spec), .min = 1, .required = true,
     .doc = "Who may call, by the one URI in the caller's certificate; everybody else is refused."},
    {.path = "allow[].identity", .kind = CLV_ROW_TEXT, .offset = ALLOW(identity),
     .format = CLV_FORMAT_URI, .required = true, .sample = "spiffe://example.net/master",
     .doc = "The caller's URI."},
    {.path = "allow[].role", .kind = CLV_ROW_ENUM, .offset = ALLOW(role), .names = role_names,
     .required = true, .sample = "master",
     .doc = "A master opens sessions, a peer speaks in sessions that name it, an observer asks "
            "for health and status."},
    {.path = "allow[].sessions", .kind = CLV_ROW_INT, .offset = ALLOW(sessions), .max = 10000,
     .initial = "0", .doc = "Sessions it may have open; 0 is limits.sessions."},
    {.path = "allow[].bytes", .kind = CLV_ROW_SIZE, .offset = ALLOW(bytes), .max = 1ull << 50,
     .initial = "0",
     .doc = "Memory its sessions may hold together; 0 is limits.session_bytes for each."},
    {.path = "allow[].tensors", .kind = CLV_ROW_INT, .offset = ALLOW(tensors), .max = 10000000,
     .initial = "0",
     .doc = "Tensors its sessions may hold together; 0 is limits.tensors for each."},
    {.path = "allow[].calls", .kind = CLV_ROW_INT, .offset = ALLOW(calls), .max = 10000000,
     .initial = "0",
     .doc = "Calls of modules that may wait or run in its sessions together; 0 is limits.calls for "
            "each."},
    {.path = "allow[].connections", .kind = CLV_ROW_INT, .offset = ALLOW(connections), .max = 65535,
     .initial = "0",
     .doc = "Connections it may have open; 0 is limits.identity_connections."},
    {.path = "allow[].state_bytes", .kind = CLV_ROW_SIZE, .offset = ALLOW(state_bytes),
     .max = 1ull << 50, .initial = "0",
     .doc = "Files of state that it may keep in state_dir, each rounded up to 4 KiB; 0 is none."},
    {.path = "allow[].cache_bytes", .kind = CLV_ROW_SIZE, .offset = ALLOW(cache_bytes),
     .max = 1ull << 50, .initial = "0",
     .doc = "Caches that it may keep in state_dir, rows that a frozen front has made; 0 is none."},
    {.path = "allow[].weight", .kind = CLV_ROW_INT, .offset = ALLOW(weight), .min = 1,
     .max = 1000, .initial = "1",
     .doc = "Its share of the cores while others compute too: twice the weight, twice the time."},

    {.path = "peers", .kind = CLV_ROW_LIST, .offset = AT(peers), .count = AT(n_peers),
     .entry_bytes = sizeof(clv_remote_spec), .commented = true,
     .doc = "Workers that this one may dial for direct transfers; a master names them, it never "
            "gives an address."},
    {.path = "peers[].name", .kind = CLV_ROW_TEXT, .offset = PEER(name),
     .format = CLV_FORMAT_NAME, .required = true, .sample = "worker-2",
     .doc = "The name masters use for it."},
    {.path = "peers[].address", .kind = CLV_ROW_TEXT, .offset = PEER(address),
     .format = CLV_FORMAT_ADDRESS, .required = true, .sample = "worker-2.example.net:7443",
     .doc = "Where the peer listens."},
    {.path = "peers[].identity", .kind = CLV_ROW_TEXT, .offset = PEER(identity),
     .format = CLV_FORMAT_URI, .required = true, .sample = "spiffe://example.net/worker/worker-2",
     .doc = "The URI the peer's certificate must carry."},

    {.path = "limits", .kind = CLV_ROW_SECTION, .doc = "What a session may use, and an identity where `allow` does not say."},
    {.path = "limits.sessions", .kind = CLV_ROW_INT, .offset = AT(limits.sessions), .min = 1,
     .max = 10000, .initial = "8", .doc = "Open sessions of an identity."},
    {.path = "limits.tensors", .kind = CLV_ROW_INT, .offset = AT(limits.tensors), .min = 1,
     .max = 10000000, .initial = "4096", .doc = "Tensors held for one session."},
    {.path = "limits.calls", .kind = CLV_ROW_INT, .offset = AT(limits.calls), .min = 1,
     .max = 10000000, .initial = "65536",
     .doc = "Calls of modules that wait or run in one session."},
    {.path = "limits.session_bytes", .kind = CLV_ROW_SIZE, .offset = AT(limits.session_bytes),
     .min = 1 << 20, .max = 1ull << 50, .initial = "64GiB",
     .doc = "Memory of one session: weights, optimiser state and tensors."},
    {.path = "limits.message_size", .kind = CLV_ROW_SIZE, .offset = AT(limits.message_bytes),
     .min = 512 << 10, .max = 1 << 30, .initial = "64MiB",
     .doc = "Largest single message. Four of these and 1 MiB for each of limits.connections are what "
            "the transport may take, at most half of memory_limit."},
    {.path = "limits.concurrent_calls", .kind = CLV_ROW_INT, .offset = AT(limits.concurrent_calls),
     .min = 1, .max = 100000, .initial = "64",
     .doc = "Requests and streams of an identity at work at the same time; a session has about six."},
    {.path = "limits.connections", .kind = CLV_ROW_INT, .offset = AT(limits.connections), .min = 1,
     .max = 65535, .initial = "256",
     .doc = "Open connections of all callers together, an eighth of them for handshakes alone; a "
            "session has about six."},
    {.path = "limits.identity_connections", .kind = CLV_ROW_INT,
     .offset = AT(limits.identity_connections), .min = 1, .max = 65535, .initial = "64",
     .doc = "Open connections of an identity; one more fails its handshake."},
    {.path = "limits.receive_window", .was = "credit", .kind = CLV_ROW_SIZE, .offset = AT(limits.credit_bytes),
     .min = 65536, .max = 1ull << 40, .initial = "64MiB",
     .doc = "Bytes that a session's stream may have in flight to this worker."},
    {.path = "limits.lease", .kind = CLV_ROW_DURATION, .offset = AT(limits.lease_ms),
     .pos = AT(limits.lease_pos), .min = 1000, .max = DAY_MS, .initial = "120s",
     .doc = "A session whose master is silent for so long is closed and its memory freed."},
    {.path = "limits.peer_timeout", .kind = CLV_ROW_DURATION,
     .offset = AT(limits.peer_timeout_ms), .min = 1000, .max = 60 * MINUTE_MS, .initial = "60s",
     .doc = "A master or a peer that is silent for so long is given up; shorter than limits.lease."},
    {.path = "limits.reference_lease", .kind = CLV_ROW_DURATION,
     .offset = AT(limits.reference_lease_ms), .min = 1000, .max = DAY_MS, .initial = "1h",
     .doc = "The longest limits.reference_lease that a session may have: values kept for a node that "
            "has died stay for so long."},
    {.path = "limits.handshake_timeout", .kind = CLV_ROW_DURATION,
     .offset = AT(limits.handshake_timeout_ms), .min = 100, .max = 10 * MINUTE_MS, .initial = "3s",
     .doc = "Time for a new connection to finish TLS."},

    {.path = "device", .kind = CLV_ROW_TEXT, .offset = AT(device), .format = CLV_FORMAT_WORKER_DEVICE,
     .initial = "cpu", .doc = "Device that stages compute on. `cleave-worker devices` lists what there is."},
    {.path = "cuda", .kind = CLV_ROW_SECTION, .commented = true,
     .doc = "NVIDIA's devices: where their files are, if not where they usually are, and how they are used."},
    {.path = "cuda.library", .kind = CLV_ROW_PATH, .offset = AT(cuda.library),
     .sample = "/usr/local/lib/cleave/libcleave_cuda.so",
     .doc = "Cleave's library for them; else it is looked for beside cleave-worker and in ../lib/cleave."},
    {.path = "cuda.folders", .kind = CLV_ROW_TEXTS, .offset = AT(cuda.folders),
     .sample = "[/usr/local/cuda/lib64]",
     .doc = "Folders with NVIDIA's libcublasLt and libcudnn, tried before the system's own."},
    {.path = "cuda.plans", .kind = CLV_ROW_PATH, .offset = AT(cuda.plans),
     .sample = "/var/lib/cleave-worker/plans",
     .doc = "Folder where cuDNN's plans of convolutions are kept for the next start, of the worker's "
            "user alone."},
    {.path = "cuda.graphs", .kind = CLV_ROW_BOOL, .offset = AT(cuda.graphs), .initial = "true",
     .doc = "Whether a device is asked for work that repeats as one CUDA graph. The bits are the same."},
    {.path = "cpu_devices", .kind = CLV_ROW_INT, .offset = AT(cpu_devices), .min = 1, .max = 8,
     .initial = "1",
     .doc = "Devices that the processor is offered as: with 2 there are cpu:0 and cpu:1 beside cpu. Each "
            "has a memory account of its own; they share the cores."},
    {.path = "device_memory", .kind = CLV_ROW_SIZE, .offset = AT(device_memory), .max = 1ull << 50,
     .initial = "0", .doc = "Memory of all modules of one device; 0 is no limit."},
    {.path = "cores", .kind = CLV_ROW_NUMBERS, .offset = AT(cores),
     .pos = AT(cores_pos), .min = 1, .high = 1023,
     .sample = "[0, 1]", .commented = true,
     .doc = "Cores that threads which compute stay on, as numbered by the system; all unless given."},
    {.path = "memory_limit", .kind = CLV_ROW_SIZE, .offset = AT(memory_limit),
     .names = memory_words, .min = 1 << 20, .max = 1ull << 50, .initial = "auto",
     .doc = "Memory for all sessions together; auto is four fifths of what the process may have: "
            "the host's memory, or less by its control group."},

    {.path = "artifacts", .kind = CLV_ROW_MAP, .offset = AT(artifacts), .count = AT(n_artifacts),
     .entry_bytes = sizeof(clv_artifact_spec), .format = CLV_FORMAT_RUN, .sample = "front-v1",
     .commented = true,
     .doc = "Weight files on this host that a master may name; it never gives a path."},
    {.path = "artifacts{}.file", .kind = CLV_ROW_PATH, .offset = ARTIFACT(file),
     .sample = "weights/front-v1.safetensors", .doc = "A safetensors file."},
    {.path = "artifacts{}.folder", .kind = CLV_ROW_PATH, .offset = ARTIFACT(folder),
     .commented = true, .sample = "weights/bert-base",
     .doc = "Or a folder of them with the ARTIFACT.json that cleave-master artifact wrote. Only files "
            "with tensors that a session wants are read."},
    {.path = "artifacts{}.sha256", .kind = CLV_ROW_TEXT, .offset = ARTIFACT(sha256),
     .format = CLV_FORMAT_SHA256, .required = true,
     .sample = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
     .doc = "What the file must hash to, or the folder's ARTIFACT.json."},
    {.path = "artifacts{}.shared", .kind = CLV_ROW_BOOL, .offset = ARTIFACT(shared),
     .initial = "false",
     .doc = "Whether its frozen parameters are in memory once for all identities; else once for each "
            "identity. Each session is charged as if it were alone."},
    {.path = "artifacts{}.readable", .kind = CLV_ROW_ENUM, .offset = ARTIFACT(readable),
     .names = readable_names, .initial = "trained",
     .doc = "Which of its parameters masters may read: those that learn, all, or none; with none a "
            "session in which one learns is refused."},

    {.path = "state_dir", .kind = CLV_ROW_PATH, .offset = AT(state_dir),
     .sample = "/var/lib/cleave-worker", .doc = "Folder for what outlives the process: which attempts of sessions have been here, and the "
            "files of state and caches of identities with allow[].state_bytes or cache_bytes."},
    {.path = "cache_ttl", .kind = CLV_ROW_DURATION, .offset = AT(cache_ttl_ms), .min = 1000,
     .max = 365ull * DAY_MS, .initial = "24h",
     .doc = "A cache that has not been used for so long is deleted, sooner where its session says "
            "so."},
    {.path = "log", .kind = CLV_ROW_SECTION, .doc = "Log lines on standard error."},
    {.path = "log.level", .kind = CLV_ROW_ENUM, .offset = AT(log.level), .names = level_names,
     .initial = "info", .doc = "Least important lines that are still written."},
    {.path = "log.json", .kind = CLV_ROW_BOOL, .offset = AT(log.json), .initial = "false",
     .doc = "Write JSON objects, one a line; --log-format is stronger."},
    {.path = "log.lines", .kind = CLV_ROW_INT, .offset = AT(log.lines), .min = 10, .max = 1000000,
     .initial = "40",
     .doc = "Lines a minute for an identity's opens, closes and loads, each; the rest is counted, and "
            "who goes over has ten in the next minute."},
    {.path = "drain_timeout", .kind = CLV_ROW_DURATION, .offset = AT(drain_timeout_ms),
     .max = DAY_MS, .initial = "30s",
     .doc = "On SIGTERM, time for running sessions to finish."},
    {.path = "metrics", .kind = CLV_ROW_SECTION, .commented = true,
     .doc = "Numbers and health over plain HTTP: /metrics for Prometheus, /healthz, /readyz. No port "
            "unless given; no tensors there, and no authentication."},
    {.path = "metrics.listen", .kind = CLV_ROW_TEXT, .offset = AT(metrics.listen),
     .pos = AT(metrics.listen_pos), .format = CLV_FORMAT_LISTEN, .required = true,
     .sample = "127.0.0.1:9101",
     .doc = "Loopback or a management network; not listen's port."},
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
