"""No key is in a process's memory while a core file, or another process of the same user, could
read it."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
cluster = None
STAGES = """stages:
  - {name: a, at: master, layers: [{op: relu}]}
  - {name: b, at: w1, layers: [{op: relu}]}
loss: {kind: mse}
train: {batch: 2, optimizer: {kind: sgd, lr: 0.1}}
"""
# A library in front of the C library's open(): reports what others could read of the process when
# it opens a key.
OPEN = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
int open(const char *path, int flags, ...) {
  struct rlimit core;
  va_list ap;
  va_start(ap, flags);
  mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
  va_end(ap);
  getrlimit(RLIMIT_CORE, &core);
  if (strstr(path, ".key"))
    dprintf(2, "opens a key: core %llu dumpable %d\n", (unsigned long long)core.rlim_max, prctl(PR_GET_DUMPABLE));
  return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open"))(path, flags, mode);
}
"""


def watched_files():
    source, library = (os.path.join(cluster.dir, "open" + end) for end in (".c", ".so"))
    with open(source, "w") as f:
        f.write(OPEN)
    done = run("gcc", "-shared", "-fPIC", "-o", library, source, "-ldl")
    assert done.returncode == 0, done.stderr
    return preloaded(library)


@suite.test
def keys_are_read_only_with_core_dumps_disabled():
    env = watched_files()
    serving = Worker(cluster, "w1", cluster.worker_config(0), env)
    serving.stop()
    said = {"serve": serving.text()}
    session = cluster.session("one", IMAGE_DATA + STAGES)
    commands = {"check": (WORKER, "check", "--config", cluster.worker_config(0)),
                "status": (MASTER, "status", session),
                "doctor": (MASTER, "doctor", session),
                "certs issue": (MASTER, "certs", "issue", "x", "--dir", cluster.certs, "--uri", "spiffe://test/x")}
    said.update({name: run(*command, env=env, cwd=cluster.dir).stderr for name, command in commands.items()})
    for name, text in said.items():
        opened = [l for l in text.splitlines() if l.startswith("opens a key")]
        assert opened and set(opened) == {"opens a key: core 0 dumpable 0"}, (name, text)


with Cluster(0) as cluster:
    cluster.ports = [free_port()]
    cluster.issue("w1", "spiffe://test/w1")
    suite.main()
