# SPDX-License-Identifier: Apache-2.0
# The storeys and their folders, lowest first. A folder includes those of its own storey and of
# lower ones, and of these only what its row lists. A row of `storey` names the storey, which is the
# folder under common/ or at the top that holds it, and the lower storeys that it knows nothing of.
# A row of `layer` has four cells: the folder, the folders above its row that it may include
# (common/base goes without saying), the headers of other projects that it may see, and the
# libraries that these need. The comment over a row is the folder's job in a sentence.
# OUT_OF_REACH lists headers that a folder may not see through others either.
#
# `make check-layers` compares every #include of the tree with this table and the archives link in
# its order; `tests/check-architecture --write` puts it into ARCHITECTURE.md.
storey = $(eval STOREY := $(strip $(1)))$(eval STOREYS += $(strip $(1)))$(eval APART_$(strip $(1)) := $(2))
layer = $(eval FOLDERS += $(strip $(1)))$(layer_row)
plugin = $(eval PLUGINS += $(strip $(1)))$(layer_row)
program = $(eval PROGRAMS += $(strip $(1)))$(layer_row)
layer_row = $(eval USES_$(strip $(1)) := $(filter-out $(1),common/base) $(2)) \
            $(eval IN_$(strip $(1)) := $(STOREY)) $(eval SEES_$(strip $(1)) := $(3))$(eval LIBS_$(strip $(1)) := $(4))

SOCKETS := sys/socket sys/un netdb netinet arpa

# errors, files, time, data types; includes nothing of models or networks
$(call storey, base)

# codes, errors, sizes, files, log, clock, Philox, digests
$(call layer, common/base,, openssl isa-l Random123, -lcrypto -lisal)

# commands and options as tables: parsing, help, manual pages, completions; exit codes
$(call layer, common/base/cli)

# numbers as text for Prometheus, one table of them per program
$(call layer, common/base/metrics)

# a port that serves a few texts: bounded connections, memory, time
$(call layer, common/base/http,, microhttpd $(SOCKETS))

# JSON text pulled value by value: bounded, located errors
$(call layer, common/base/json)

# dtype, shape, counted storage, views
$(call layer, common/base/tensor)

# the optimisers with their settings, ranges and defaults; the data formats with their keys
$(call layer, common/base/settings)

# the ops and the backends that compute them
$(call storey, kernels)

# ops, attributes, the backend vtable
$(call layer, kernels, common/base/tensor common/base/settings)

# one file per op: its row, its rules, and plain loops in f32 and f64, which define the op
$(call layer, kernels/ops, common/base/tensor kernels)

# each optimiser's formula for one value, and the numbers of a step that it needs
$(call layer, kernels/steps, common/base/tensor common/base/settings kernels)

# the reference backend: plain loops
$(call layer, kernels/ref, common/base/tensor common/base/settings kernels kernels/ops kernels/steps)

# the CPU backend: f32, bf16 for convolutions and products, blocked layouts
$(call layer, kernels/cpu, common/base/tensor common/base/settings kernels kernels/ops kernels/steps, oneapi dnnl cblas, -ldnnl -lopenblas -lgomp)

# the GPU backend, f32 and bf16: calls NVIDIA's runtime and libraries through one table
$(call layer, kernels/cuda, common/base/tensor common/base/settings kernels kernels/ops kernels/steps, Random123)

# the GPU backend without a device: estimates what a plan needs
$(call layer, kernels/cuda/dryrun, common/base/tensor common/base/settings kernels kernels/cuda)

# finds and opens the library of the GPU backend at run time
$(call layer, kernels/load, kernels)

# the table of NVIDIA's runtime and libraries, built as a library where the toolkit is installed
$(call plugin, kernels/cuda/nvidia, kernels kernels/cuda kernels/load, cuda_runtime_api cublasLt cudnn_adv cudnn_graph)

# graphs, parameters, optimisers, schedules, and the files that describe them
$(call storey, model)

# schedules as data: makes, checks, simulates, draws and reads them; suggests cuts
$(call layer, common/model/sched)

# session.yaml, worker.yaml and the policy, one schema table each
$(call layer, common/model/config, common/base/settings, libfyaml netinet arpa, -lfyaml)

# safetensors, checkpoint folders, manifests, records of runs
$(call layer, common/model/weights, common/base/tensor common/base/json, jansson, -ljansson)

# graphs of ops, parameters, plans
$(call layer, common/model/graph, common/base/tensor kernels kernels/ops kernels/ref kernels/cpu)

# reads Hugging Face's config.json and builds the graph with the names of its weights
$(call layer, common/model/hf, common/base/json common/base/tensor kernels kernels/ops common/model/graph)

# builds a graph from layers of a session file or from a named architecture
$(call layer, common/model/models, common/base/tensor kernels kernels/ops common/model/config common/model/graph common/model/hf)

# optimisers over blocks of parameters, schedules, clipping
$(call layer, common/model/optim, common/base/tensor common/base/settings kernels kernels/steps)

# messages between two processes, and their cost; includes nothing of models
$(call storey, net, model kernels)

# TLS: minimum version, results of handshakes, identities, certificate authority, probe
$(call layer, common/net/tls,, openssl $(SOCKETS), -lssl -lcrypto)

# encodes and decodes messages
$(call layer, common/net/wire, common/base/tensor common/base/settings, protobuf-c cleave/v1, -lprotobuf-c)

# unary calls and streams over mutual TLS
$(call layer, common/net/rpc,, grpc $(SOCKETS), -lgrpc -lgpr)

# accounts of quotas, memory charged to them, shares of the cores
$(call layer, common/net/fair, common/base/tensor)

# sends and receives packets: lanes, chunks, credit, pace
$(call layer, common/net/link, common/base/tensor common/net/fair common/net/wire common/net/rpc)

# the node that both programs embed: modules, contexts of distributed autograd, references
$(call storey, engine)

# references that outlive their context: a state machine without network or clock
$(call layer, common/engine/reference, common/base/tensor common/net/fair common/net/wire)

# modules, nodes, contexts of distributed autograd
$(call layer, common/engine, common/base/tensor common/base/settings kernels common/model/graph common/model/optim common/model/weights \
  common/net/wire common/net/rpc common/net/fair common/net/link common/engine/reference)

# What a program of either side may include: all of common but its ports for people, and kernels.
ENGINE := common/base/cli common/base/tensor common/base/settings common/model/sched common/model/config common/net/tls common/model/weights kernels kernels/ops \
          common/model/graph common/model/models common/model/optim common/net/wire common/net/rpc common/net/fair common/net/link \
          common/engine/reference common/engine

# the private side: raw records, labels, and every decision about what may leave
$(call storey, master)

# tokenizers: text to token numbers; cannot reach the network
OUT_OF_REACH_master/tokens := grpc microhttpd $(SOCKETS)
$(call layer, master/tokens, common/base/json, utf8proc, -lutf8proc)

# words and boxes of documents, read by child processes under limits; cannot reach the network
OUT_OF_REACH_master/documents := grpc microhttpd $(SOCKETS)
$(call layer, master/documents, master/tokens)

# readers, batches, loader: **raw records are here, and this folder cannot reach the network**
OUT_OF_REACH_master/data := grpc microhttpd $(SOCKETS)
$(call layer, master/data, common/base/json common/base/tensor common/base/settings master/tokens master/documents, zlib png jpeglib jerror sqlite3, -lpng -ljpeg -lz)

# progress lines, step logs, event files for TensorBoard, traces, status as text and JSON
$(call layer, master/report)

# files sealed with a key that stays at the master; cannot reach the network
OUT_OF_REACH_master/seal := grpc microhttpd $(SOCKETS)
$(call layer, master/seal,, openssl, -lcrypto)

# scores: accuracy, F1, AUC, confusion matrix, perplexity
$(call layer, master/score, common/base/settings)

# run folders: locks and states of runs; the commands `runs`, `log` and `stop`
$(call layer, master/history, common/base/tensor common/model/weights master/report)

# measures how well records and labels can be read from tensors; cannot reach the network
OUT_OF_REACH_master/look := grpc microhttpd $(SOCKETS)
$(call layer, master/look, common/base/tensor)

# computes from the graph which places of a record each element of a value depends on
$(call layer, master/reach, common/base/tensor kernels kernels/ops common/model/graph)

# headers of libcleave: cleave.h for programs, others for this tree
$(call layer, master/api, $(ENGINE))

# the gates, the record of what left (written before sending), the ledger of keys, the policy
$(call layer, master/egress, common/base/tensor common/base/settings kernels kernels/ops common/model/graph common/model/config common/net/tls master/reach \
  master/api)

# the part that commands call: runtime, peers, modules, contexts, calls, backward, steps, state
$(call layer, master/api/core, $(ENGINE) master/api)

# the part that only programs call: kept references, futures, gradients, divided layers, files,
# rejoining, opening by a program and what holds it
$(call layer, master/api/extra, $(ENGINE) master/reach master/api master/egress master/api/core)

# who includes the headers is linked with what stands behind them
BEHIND_master/api := master/api/core master/api/extra master/egress master/reach

# files of checkpoints at workers: read, fetched, removed; copies sealed with a key
$(call layer, master/checkpoints, common/base/tensor common/model/config common/model/weights master/seal master/api)

# previews a session: blueprint, placed schedules, privacy, memory, suggested cuts
$(call layer, master/plan, common/base/tensor common/base/settings common/model/sched common/model/config common/model/weights kernels kernels/cuda/dryrun \
  common/model/graph common/model/hf common/model/models master/data master/look master/api master/egress master/reach)

# the trainer, a program on master/api: steps, measurements, evaluations, checkpoints
$(call layer, master/train, $(ENGINE) master/data master/report master/score master/api master/plan master/egress)

# observes a session: doctor, `status`, metrics of a run for Prometheus
$(call layer, master/watch, $(ENGINE) common/base/metrics common/base/http master/data master/report master/score \
  master/api master/plan master/egress master/train)

# commands on a session file: train, eval, predict, plan, check
$(call layer, master/run, $(ENGINE) common/model/hf master/data master/report master/score master/history master/api \
  master/checkpoints master/plan master/egress master/train master/watch)

# the page of `report`: reads run folders, writes one HTML file; cannot reach the network
$(call layer, master/page, common/base/json common/base/tensor common/base/settings common/model/config common/model/weights master/egress)

# the command `sweep`: points, a run for each in a process of its own, a table of their scores
$(call layer, master/sweep, common/base/cli common/base/json common/base/settings common/model/config common/model/weights \
  master/egress master/plan master/run)

# cleave-master: its commands
$(call program, master, $(ENGINE) master/tokens master/documents master/data master/report master/history master/api \
  master/plan master/page master/egress master/train master/watch master/run master/sweep)

# the rented side: the worker's files and its service
$(call storey, worker, master)

# files at a worker: artifacts (weights), state, caches; attempts of sessions
$(call layer, worker/store, common/base/tensor common/model/config common/model/weights kernels)

# sessions, methods, loading of modules, status of the worker
$(call layer, worker/service, $(ENGINE) common/base/metrics worker/store)

# cleave-worker: the daemon
$(call program, worker, $(ENGINE) common/base/metrics common/base/http kernels/load worker/store worker/service, \
  sys/socket sys/un)
