# SPDX-License-Identifier: Apache-2.0
"""Connections that fail: a relay in front of a port (Relay), and a Cluster whose workers are
dialled through relays (RelayedCluster). Standard library only."""
import select, socket, struct, threading, time
from cluster import Cluster, free_port

USED = 4096  # a connection with more bytes than this in each direction is past its handshake


class Relay:
    """A port of 127.0.0.1 that passes connections on to another port.

    reset() ends each present connection by a reset, with `used` only those that have carried
    messages; `cut` counts these. drop() passes nothing on, also for new
    connections, until heal(), like a firewall that drops packets. refuse() resets and accepts
    no connection until heal(). after(n): the connection that brings the n-th byte from now on is
    reset once. before_next(f): the next connection is passed on after f()."""

    def __init__(self, port):
        self.to, self.port, self.job = port, free_port(), None
        self.lock, self.accepted, self.cut = threading.Lock(), 0, 0
        self.pairs = {}  # pair of sockets -> bytes in each direction, number of ended directions
        self.open, self.countdown, self.closing = threading.Event(), None, False
        self.open.set()
        self.listener = None
        self.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def listen(self):
        self.listener = socket.create_server(("127.0.0.1", self.port), backlog=64)

    def accept(self):
        while not self.closing:
            listener = self.listener
            if not listener:
                time.sleep(0.02)
                continue
            try:
                if not select.select([listener], [], [], 0.05)[0]:
                    continue
                near = listener.accept()[0]
                self.job, job = None, self.job
                if job:
                    job()
                far = socket.create_connection(("127.0.0.1", self.to))
            except (OSError, ValueError):
                continue
            for s in (near, far):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.pairs[near, far] = [0, 0, 0]
                self.accepted += 1
            for way in (0, 1):
                threading.Thread(target=self.carry, args=((near, far), way), daemon=True).start()

    def is_due(self, n):
        with self.lock:
            if self.countdown is None:
                return False
            self.countdown -= n
            due = self.countdown <= 0
            self.countdown = None if due else self.countdown
            return due

    def count(self, pair, way, n):
        """Counts n bytes, or the end of a direction. A connection that has ended in both is
        forgotten."""
        with self.lock:
            carried = self.pairs.get(pair, [0, 0, 0])
            carried[way] += n
            carried[2] += not n
            if carried[2] == 2:
                self.pairs.pop(pair, None)

    def carry(self, pair, way):
        a, b = pair[way], pair[1 - way]
        try:
            while data := a.recv(65536):
                self.open.wait()
                if self.is_due(len(data)):
                    self.end(pair, True)
                    return
                b.sendall(data)
                self.count(pair, way, len(data))
            b.shutdown(socket.SHUT_WR)
            self.count(pair, way, 0)
        except OSError:
            self.end(pair)

    def end(self, pair, is_cut=False):
        with self.lock:
            carried = self.pairs.pop(pair, [0, 0, 2])
            self.cut += is_cut and not carried[2] and min(carried[:2]) >= USED
        for s in pair:
            try:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.shutdown(socket.SHUT_RD)
                s.close()
            except OSError:
                pass

    def reset(self, most=None, used=False):
        with self.lock:
            pairs = [p for p, carried in self.pairs.items() if not used or min(carried[:2]) >= USED][:most]
        for pair in pairs:
            self.end(pair, True)
        return len(pairs)

    def after(self, n):
        with self.lock:
            self.countdown = n

    def before_next(self, job):
        self.job = job

    def drop(self):
        self.open.clear()

    def refuse(self):
        listener, self.listener = self.listener, None
        listener.close()
        self.reset()

    def heal(self):
        if not self.listener:
            self.listen()
        self.open.set()

    def close(self):
        self.closing = True
        self.heal()
        self.reset()


class RelayedCluster(Cluster):
    """A Cluster in which worker i is dialled through a Relay: by the master through self.relays[i],
    by other workers through self.between[i], which with `parted` is another one, else the same."""

    def __init__(self, n=2, parted=False, **options):
        self.relays = {}
        self.between = {} if parted else self.relays
        super().__init__(n, **options)
        for i in range(n):
            self.address(i)

    def _through(self, relays, i):
        if i not in relays:
            relays[i] = Relay(self.ports[i])
        return f"127.0.0.1:{relays[i].port}"

    def address(self, i):
        return self._through(self.relays, i)

    def peer_address(self, i):
        return self._through(self.between, i)

    def close(self):
        for relay in {*self.relays.values(), *self.between.values()}:
            relay.close()
        return super().close()
