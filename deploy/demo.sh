#!/bin/bash
# Train Fashion-MNIST in U shape, the first layers and the last at the master and the rest at two
# workers, on this machine, with mutual TLS and throwaway certificates. Everything it starts it
# stops again, also on Ctrl-C or failure.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$(cd "$1" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/cleave-demo.XXXXXX")
export XDG_STATE_HOME="$work/state" # its keys are of no use to anybody: not in the user's ledger
pids=()

stop() {
  trap - EXIT INT TERM
  for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
  for p in "${pids[@]}"; do wait "$p" 2>/dev/null || true; done
}
trap 'stop; exit 130' INT TERM
trap stop EXIT

echo "== certificates in $work/certs"
"$bin/cleave-master" certs init --dir "$work/certs" >/dev/null
"$bin/cleave-master" certs issue master --dir "$work/certs" --uri spiffe://cleave.demo/master >/dev/null
for i in 1 2; do
  "$bin/cleave-master" certs issue "worker-$i" --dir "$work/certs" --ip 127.0.0.1 \
    --uri "spiffe://cleave.demo/worker/worker-$i" >/dev/null
done

worker() { # number, port, the other's number and port
  cat >"$work/worker-$1.yaml" <<YAML
name: worker-$1
listen: 127.0.0.1:$2
tls: {ca: certs/ca.pem, cert: certs/worker-$1.pem, key: certs/worker-$1.key}
allow:
  - {identity: "spiffe://cleave.demo/master", role: master}
  - {identity: "spiffe://cleave.demo/worker/worker-$3", role: peer}
peers:
  - {name: worker-$3, address: "127.0.0.1:$4", identity: "spiffe://cleave.demo/worker/worker-$3"}
YAML
  "$bin/cleave-worker" serve --config "$work/worker-$1.yaml" 2>"$work/worker-$1.log" &
  pids+=($!)
}
echo "== two workers"
worker 1 17443 2 17444
worker 2 17444 1 17443
for i in 1 2; do
  for _ in $(seq 100); do grep -q ' ready ' "$work/worker-$i.log" && break; sleep 0.1; done
  grep ' ready ' "$work/worker-$i.log" || { cat "$work/worker-$i.log"; exit 1; }
done

cp "$here/sessions/fashion-mnist.yaml" "$work/session.yaml"
cd "$work"
echo "== what runs where, and what leaves the private network"
"$bin/cleave-master" plan session.yaml
echo "== training"
"$bin/cleave-master" train session.yaml &
master=$!
pids+=($master)
wait $master
echo "the run's files: $work/runs"
