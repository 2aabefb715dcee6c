#!/usr/bin/python3
"""Lost workers rejoin the same runtime, over real daemons: after a kill and a restart on the same
port, after a cut of the network, or after they were stopped for longer than the peer timeout. With
and without a link between the workers before the loss, with and without a thread for the master's
node."""
import os, signal, socket, subprocess, sys, threading
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import BIN, Cluster, Worker, chosen, free_port

PROGRAM = os.path.join(BIN, "net", "api_rejoin")
# A killed worker counts as lost after 3 s in which its host refuses, or when the lease is over; the
# program loses it a dozen times.
WAYS = chosen({"killed_direct": ("transfer: direct\nlimits: {lease: 1s}\n", "kill", "start"),
               "killed_via_master": ("transfer: direct\n", "kill", "start", "via_master"),
               "killed_single_thread": ("transfer: direct\n", "kill", "start", "single"),
               "cut_off": ("transfer: direct\n", "cut", "mend"),
               "stopped": ("transfer: direct\nlimits: {peer_timeout: 2s, connect_timeout: 2s, lease: 2s}\n", "stop", "go_on")},
              "killed_direct")


class Line:
    """A port that passes its connections on to another port, until it is cut."""

    def __init__(self, target):
        self.target, self.port, self.open = target, free_port(), []
        self.mend()

    def mend(self):
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self.serve, args=(self.listener,), daemon=True).start()

    def serve(self, listener):
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            # a small packet does not wait 40 ms for the receipt of the one before
            for s in (near, far):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.open += [near, far]
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    @staticmethod
    def pump(a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()
        for s in self.open:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.open.clear()


def do(cluster, line, what):
    worker = cluster.workers[1]
    if what == "kill":
        worker.kill()
        worker.process.wait()
    elif what == "start":
        cluster.workers[1] = Worker(cluster, "w2", cluster.worker_config(1))
    elif what in ("stop", "go_on"):
        worker.kill(signal.SIGSTOP if what == "stop" else signal.SIGCONT)
    else:
        getattr(line, what)()


def run_way(cluster, line, name, body, *args):
    session = cluster.session(name, body)
    if "cut" in args:
        with open(session) as f:
            text = f.read().replace(f":{cluster.ports[1]}\"", f":{line.port}\"")
        with open(session, "w") as f:
            f.write(text)
    p = subprocess.Popen([PROGRAM, session, "w1", "w2", *args, *sys.argv[2:]], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
    for said in p.stdout:
        word, _, rest = said.strip().partition(" ")
        if word == "ask":
            do(cluster, line, rest)
            p.stdin.write("done\n")
            p.stdin.flush()
        else:
            ok = word == "ok"
            print(f"ok {name}:{rest}" if ok else f"not ok {name}:{said[7:].strip()}", flush=True)
    code = p.wait()
    if code:
        print(f"not ok {name}_ends_well ({code})", flush=True)
    return code != 0


def main():
    wanted = sys.argv[1:2]
    with Cluster(2) as cluster:
        line = Line(cluster.ports[1])
        failed = sum(run_way(cluster, line, name, *way) for name, way in WAYS.items()
                     if not wanted or name in wanted)
    return 1 if failed else 0


sys.exit(main())
