# SPDX-License-Identifier: Apache-2.0
"""Compares `cleave-master status --json` of two workers with their /metrics, and both with the jobs
of mixed_soak.py."""
import collections, json, re, subprocess, threading, time
from cluster import MASTER, SLOW
from measured import numbers as read

# key of a session in status -> metric with its sum over an identity's sessions
GAUGES = {"contexts": "contexts", "values": "values", "calls_waiting": "calls_waiting",
          "references": "owned_references", "references_used": "used_references",
          "references_pending": "pending_reference_messages", "memory_bytes": "memory_bytes"}
LOADS = {"frames": "link_packets", "missing_bytes": "link_pending_bytes"}
# key of a module in status -> counter of the identity
WORK = {"steps": "steps", "forwards": "forwards", "backwards": "backwards"}
LIMITS = {"memory_limit_bytes": "memory_limit_bytes", "session_limit_bytes": "session_memory_limit_bytes",
          "sessions_limit": "sessions_limit", "connections_limit": "connections_limit"}
SUMS = {"sessions_open": "sessions", "memory_bytes": "memory_bytes",
        "handshake_failures": "handshake_failures_total"}  # of the worker, summed over all labels
TAIL = 16384  # bytes that a session, on average, still moves while it closes
TIMEOUT_S = 6  # seconds within which the workers become idle after their callers


def labelled(found, name):
    """{label values joined by '/': value} of a metric."""
    mark, n = f"cleave_worker_{name}{{", len(f"cleave_worker_{name}{{")
    return {"/".join(re.findall(r'"([^"]*)"', k[n:])): v for k, v in found.items() if k.startswith(mark)}


def sums(found):
    """The values that are not 0, but must be when no session exists."""
    names = ("sessions", *GAUGES.values(), *LOADS.values())
    totals = {n: sum(labelled(found, n).values()) for n in names}
    return {n: v for n, v in totals.items() if v}


def command(cluster, user, interval):
    keys = [w for key, end in (("cert", "pem"), ("key", "key"))
            for w in ("--set", f"tls.{key}=certs/{user}.{end}")]
    return [MASTER, "status", cluster.looking, "--json", "--interval", interval, *keys]


def rows_of(cluster, user, interval="0.1"):
    """{worker: row} of status, as the user sees them."""
    done = subprocess.run(command(cluster, user, interval), cwd=cluster.dir, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, timeout=120 * SLOW)
    if done.returncode != 0:
        raise AssertionError(f"status ends with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return {row["worker"]: row for row in map(json.loads, done.stdout.splitlines())}


# ---- status beside metrics -----------------------------------------------------------------------

class Pair:
    """A worker's row of status, and its metrics just before and just after."""

    def __init__(self, row, before, after):
        self.row, self.before, self.after, self.wrong = row, before, after, []

    def between(self, what, low, value, high, slack=0.0):
        if not low - slack <= value <= high + slack:
            self.wrong.append(f"{self.row['worker']}: {what}: status {value!r}, metrics {low!r} to {high!r}")

    def metric(self, name):
        key = "cleave_worker_" + name
        return self.before.get(key, 0), self.after.get(key, 0)

    def gauge(self, what, value, name, label=None):
        pick = lambda found: labelled(found, name).get(label, 0) if label else found.get("cleave_worker_" + name, 0)
        low, high = sorted((pick(self.before), pick(self.after)))
        self.between(what, low, value, high)


def by_identity(pair):
    sessions = pair.row["sessions"]
    for identity, open_ in labelled(pair.after, "sessions").items():
        mine = [s for s in sessions if s["identity"] == identity]
        pair.gauge(f"sessions of {identity}", len(mine), "sessions", identity)
        for key, name in GAUGES.items():
            pair.gauge(f"{key} of {identity}", sum(s[key] for s in mine), name, identity)


def by_link(pair):
    links = [l for s in pair.row["sessions"] for l in s["links"]]
    for label in labelled(pair.after, "link_packets"):
        peer, way = label.split("/")
        for key, name in LOADS.items():
            value = sum(l[f"{key}_{way}"] for l in links if l["peer"] == peer)
            pair.gauge(f"{key} {way} with {peer}", value, name, label)


def of_the_worker(pair):
    row = pair.row
    for key, name in LIMITS.items():
        pair.gauge(key, row[key], name)
    pair.gauge("ready", float(not row["draining"]), "ready")
    for key, name in SUMS.items():
        low, high = sorted(sum(labelled(f, name).values()) for f in (pair.before, pair.after))
        pair.between(key, low, row[key], high)
    low, high = pair.metric("uptime_seconds")
    # status shows six digits
    pair.between("uptime_s", low, row["uptime_s"], high, slack=1e-5 * row["uptime_s"] + 0.001)
    ends = pair.metric("certificate_expiry_timestamp_seconds")[1]
    pair.between("certificate_days", (ends - time.time()) / 86400, row["certificate_days"],
                 (ends - time.time()) / 86400, slack=0.002)
    resident = sorted(f["process_resident_memory_bytes"] for f in (pair.before, pair.after))
    pair.between("resident_bytes", resident[0], row["resident_bytes"], resident[1], slack=4 << 20)


def connections(rows, during):
    """Compares connections. Status counts its own ones too, so the metrics are read while it
    waits."""
    return [f"{w}: connections: status {row['connections']}, metrics {n['cleave_worker_connections']:g}"
            for (w, row), n in zip(sorted(rows.items()), during)
            if row["connections"] != n["cleave_worker_connections"]]


def look(cluster):
    """One comparison. Returns the differences and the pairs."""
    with_status = subprocess.Popen(command(cluster, "watch", "0.6"), cwd=cluster.dir, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)
    time.sleep(0.35)
    before = [read(p) for p in cluster.pages]
    out, _ = with_status.communicate(timeout=120 * SLOW)
    after = [read(p) for p in cluster.pages]
    if with_status.returncode != 0:
        return [f"status ends with {with_status.returncode}: {out[-1000:]}"], []
    rows = {row["worker"]: row for row in map(json.loads, out.splitlines())}
    pairs = [Pair(rows[f"w{i + 1}"], b, a) for i, (b, a) in enumerate(zip(before, after))]
    for pair in pairs:
        by_identity(pair)
        by_link(pair)
        of_the_worker(pair)
    return connections(rows, before) + [w for p in pairs for w in p.wrong], pairs


def at_rest(pairs):
    """Whether no varying value changed between the two readings of a worker. A counter that goes on
    would count more than the row of status, which lies between them."""
    names = ("sessions", *GAUGES.values(), *LOADS.values(), *(f"{n}_total" for n in WORK.values()), "handshake_failures_total")
    return all(labelled(p.before, n) == labelled(p.after, n) for p in pairs for n in names)


def compare(cluster, ledger):
    """The differences that stay. A packet or connection in flight may be counted by only one of the
    two."""
    end = time.monotonic() + TIMEOUT_S * SLOW
    while True:
        wrong, pairs = look(cluster)
        if pairs and not wrong and at_rest(pairs):
            return ledger.compare(pairs)
        if time.monotonic() > end:
            return wrong or ["the workers do not come to rest"]


# ---- sums that counters must have ----------------------------------------------------------------

class Ledger:
    """Sums that the workers' counters must equal: of events that jobs know of, of open sessions
    (status), and of ended ones (audit lines of the workers)."""

    def __init__(self, cluster):
        self.cluster, self.refused_sessions = cluster, 0
        self.least, self.most = collections.Counter(), collections.Counter()
        self.guessed, self.ended, self.failures, self.lock = set(), {}, 0, threading.Lock()
        self.offsets, self.closed, self.bytes = [0, 0], [0, 0], [collections.Counter(), collections.Counter()]
        self.tail = [0, 0]

    def stepped(self, user, workers, least, most):
        with self.lock:
            for w in workers:
                self.least[w, user] += least
                self.most[w, user] += most

    def turned_away(self, sessions=0, handshakes=0):
        with self.lock:
            self.refused_sessions += sessions
            self.failures += handshakes

    def unknown(self, user):
        """Records a program that does not report its steps."""
        self.guessed.add(user)

    def audit(self, i):
        """Reads the new audit lines in the log of worker i."""
        with open(self.cluster.workers[i].log_path, "rb") as f:
            f.seek(self.offsets[i])
            text = f.read()
        whole = text[:text.rfind(b"\n") + 1]
        self.offsets[i] += len(whole)
        for m in re.finditer(rb"audit close session=.* bytes_in=(\d+) bytes_out=(\d+)", whole):
            self.closed[i] += 1
            self.bytes[i]["in"] += int(m.group(1))
            self.bytes[i]["out"] += int(m.group(2))

    def compare(self, pairs):
        """Checks that each counter is the sum over ended sessions and over those in status."""
        wrong = []
        for i, pair in enumerate(pairs):
            self.audit(i)
            sessions = pair.row["sessions"]
            for way in ("in", "out"):
                live = sum(s["bytes_" + way] for s in sessions)
                at = [sum(v for k, v in labelled(f, "link_bytes_total").items() if k.endswith("/" + way))
                      for f in (pair.before, pair.after)]
                tail = at[0] - live - self.bytes[i][way]
                self.tail[i] = max(self.tail[i], tail / max(1, self.closed[i]))
                pings = 4096 * (1 + len(sessions))  # each comparison sends a PING on each link
                if not -pings <= tail <= TAIL * self.closed[i] + pings or at[1] - at[0] > pings:
                    wrong.append(f"w{i + 1}: bytes {way}: metrics {at[0]:.0f} and {at[1]:.0f}, open sessions {live}, "
                                 f"{self.closed[i]} closed ones {self.bytes[i][way]}")
            for key, name in WORK.items():
                for identity, total in labelled(pair.after, name + "_total").items():
                    live = sum(m[key] for s in sessions if s["identity"] == identity for m in s["modules"])
                    ended, where = total - live, (i, key, identity)
                    if ended < self.ended.get(where, 0):
                        wrong.append(f"w{i + 1}: {key} of {identity}: {total:g}, of which open sessions {live}; "
                                     f"those that have ended had {self.ended[where]:g} before")
                    self.ended[where] = ended
        return wrong

    def settle(self):
        """Called when no session exists: the workers' counters must equal the sums of the jobs."""
        wrong, refused, failures = [], 0, 0
        for i, page in enumerate(self.cluster.pages):
            found = read(page)
            refused += labelled(found, "refused_sessions_total")["quota"]
            failures += sum(labelled(found, "handshake_failures_total").values())
            for identity, total in labelled(found, "steps_total").items():
                key = (f"w{i + 1}", identity.rsplit("/", 1)[1])
                most = float("inf") if key[1] in self.guessed else self.most[key]
                if not self.least[key] <= total <= most:
                    wrong.append(f"w{i + 1}: {total:g} steps of {identity}, which took {self.least[key]} to {most}")
        if refused != self.refused_sessions:
            wrong.append(f"{refused:g} sessions refused for their number, {self.refused_sessions} tried")
        if failures < self.failures:  # gRPC retries by itself
            wrong.append(f"{failures:g} handshakes failed, of at least {self.failures}")
        return wrong

    def account(self):
        return (f"{sum(self.closed)} sessions closed at the workers, {sum(self.least.values())} steps of stages known "
                f"to have been taken, {self.refused_sessions} sessions over their quota, {self.failures} or more "
                f"callers that TLS turned away; at most {max(self.tail):.0f} bytes per session moved while it closed")
