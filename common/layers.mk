# SPDX-License-Identifier: Apache-2.0
# The layers, lowest first. A row is a folder, what it may include of the folders above its row
# (common/base goes without saying), the headers of others that it may see, and what these link.
# The comment over a row is the folder's job in a sentence. OUT_OF_REACH: headers that a folder may
# not see through others either.
#
# `make check-layers` compares every #include of the tree with this table and the archives link in
# its order; `tests/check-architecture --write` puts it into ARCHITECTURE.md.
layer = $(eval FOLDERS += $(strip $(1)))$(layer_row)
plugin = $(eval PLUGINS += $(strip $(1)))$(layer_row)
program = $(eval PROGRAMS += $(strip $(1)))$(layer_row)
layer_row = $(eval USES_$(strip $(1)) := $(filter-out $(1),common/base) $(2)) \
            $(eval SEES_$(strip $(1)) := $(3))$(eval LIBS_$(strip $(1)) := $(4))

SOCKETS := sys/socket sys/un netdb netinet arpa

# codes, errors, sizes, files, log, clock, Philox, digests
$(call layer, common/base,, openssl isa-l Random123, -lcrypto -lisal)

# commands and options as tables: parsing, help, manual pages, completions; exit codes
$(call layer, common/cli)

# numbers as text for Prometheus, one table of them per program
$(call layer, common/metrics)

# a port that serves a few texts: bounded connections, memory, time
$(call layer, common/http,, microhttpd $(SOCKETS), -lmicrohttpd)

# JSON text pulled value by value: bounded, located errors
$(call layer, common/json)

# dtype, shape, counted storage, views
$(call layer, common/tensor)

# what an optimiser may be told: the list of optimisers, settings, ranges, defaults
$(call layer, common/settings)

# schedules as data: made, checked, simulated, drawn, read; where to cut
$(call layer, common/sched)

# session.yaml, worker.yaml, one schema table each
$(call layer, common/config, common/settings, libfyaml netinet arpa, -lfyaml)

# TLS floor, how handshakes end, identities, certificate authority, probe
$(call layer, common/tls,, openssl $(SOCKETS), -lssl -lcrypto)

# safetensors, checkpoint folders, manifests, records of runs
$(call layer, common/weights, common/tensor common/json, jansson, -ljansson)

# ops, attributes, the backend vtable
$(call layer, kernels, common/tensor common/settings)

# each op in a file: its row, its rules, its plain loops in f32 and f64 (the definition of the op)
$(call layer, kernels/ops, common/tensor kernels)

# each optimiser's step of one value, and the numbers of one step that it needs
$(call layer, kernels/steps, common/tensor common/settings kernels)

# the backend of plain loops
$(call layer, kernels/ref, common/tensor common/settings kernels kernels/ops kernels/steps)

# f32, convolutions and linear in bf16 too, blocked layouts
$(call layer, kernels/cpu, common/tensor common/settings kernels kernels/ops kernels/steps, oneapi dnnl cblas, -ldnnl -lopenblas -lgomp)

# NVIDIA's devices: f32 and bf16; through one table of what it uses of their runtime and libraries
$(call layer, kernels/cuda, common/tensor common/settings kernels kernels/ops kernels/steps, Random123)

# that backend on a device that is only written down: what plans need where there is none
$(call layer, kernels/cuda/paper, common/tensor common/settings kernels kernels/cuda)

# the library of the GPU backend, found and opened at run time
$(call layer, kernels/load, kernels)

# NVIDIA's runtime and libraries in that table; a library of its own, where there is a toolkit
$(call plugin, kernels/cuda/nvidia, kernels kernels/cuda kernels/load, cuda_runtime_api cublasLt cudnn_adv cudnn_graph)

# graphs of ops, parameters, plans
$(call layer, common/graph, common/tensor kernels kernels/ops kernels/ref kernels/cpu)

# models by Hugging Face's config.json: read, and built as graphs under the names of its files
$(call layer, common/hf, common/json common/tensor kernels kernels/ops common/graph)

# layers of a session file or a named architecture to a graph
$(call layer, common/models, common/tensor kernels kernels/ops common/config common/graph common/hf)

# optimisers over blocks of parameters, schedules, clipping
$(call layer, common/optim, common/tensor common/settings kernels kernels/steps)

# messages to structs and back
$(call layer, common/wire, common/tensor common/settings, protobuf-c cleave/v1, -lprotobuf-c)

# unary calls and streams over mutual TLS
$(call layer, common/rpc,, grpc $(SOCKETS), -lgrpc -lgpr)

# accounts of quotas, memory charged to them, shares of the cores
$(call layer, common/fair, common/tensor)

# packets; lanes, chunks, credit, pace
$(call layer, common/link, common/tensor common/fair common/wire common/rpc)

# references that outlive their context: a state machine without network or clock
$(call layer, common/reference, common/tensor common/fair common/wire)

# modules, nodes, contexts of distributed autograd
$(call layer, common/engine, common/tensor common/settings kernels common/graph common/optim common/weights \
  common/wire common/rpc common/fair common/link common/reference)

# What a program of either side may include: all of common but its ports for people, and kernels.
ENGINE := common/cli common/tensor common/settings common/sched common/config common/tls common/weights kernels kernels/ops \
          common/graph common/models common/optim common/wire common/rpc common/fair common/link \
          common/reference common/engine

# tokenizers: text to token numbers; the network is out of reach
OUT_OF_REACH_master/tokens := grpc microhttpd $(SOCKETS)
$(call layer, master/tokens, common/json, utf8proc, -lutf8proc)

# words and boxes of documents, by children under limits; the network is out of reach
OUT_OF_REACH_master/documents := grpc microhttpd $(SOCKETS)
$(call layer, master/documents, master/tokens)

# readers, image folders, batches, loader: **raw records live here, the network is out of reach**
OUT_OF_REACH_master/data := grpc microhttpd $(SOCKETS)
$(call layer, master/data, common/json common/tensor master/tokens master/documents, zlib png jpeglib jerror, -lpng -ljpeg -lz)

# progress lines, what is kept of each step, event files for TensorBoard, traces, the status of
# workers as text and JSON
$(call layer, master/report)

# how good answers are: accuracy, F1, AUC, confusion, perplexity
$(call layer, master/score)

# run folders: who holds one, what became of it; `runs`, `log`, `stop`
$(call layer, master/history, common/tensor common/weights master/report)

# what an onlooker reads of records and labels in what leaves; the network is out of reach
OUT_OF_REACH_master/look := grpc microhttpd $(SOCKETS)
$(call layer, master/look, common/tensor)

# libcleave: modules, references, contexts, the tape between modules, optimisers, state by name,
# the gate for what is sent
$(call layer, master/api, $(ENGINE))

# the record of what left: written ahead, settled, read; the ledger of keys; the policy
$(call layer, master/egress, common/tensor common/config common/tls)

# of which places of a record each element of each value is made, by the graph alone
$(call layer, master/reach, common/tensor kernels kernels/ops common/graph)

# what is known before anything runs: blueprint, placed schedules, descriptions, suggested cuts
$(call layer, master/plan, common/tensor common/settings common/sched common/config common/weights kernels kernels/cuda/paper \
  common/graph common/hf common/models master/data master/look master/api master/egress master/reach)

# the trainer, a program on master/api: its steps, what it measures, evaluations, checkpoints
$(call layer, master/train, $(ENGINE) master/data master/report master/score master/api master/plan master/egress)

# what is seen from outside: doctor, `status`, the numbers of a run for Prometheus
$(call layer, master/watch, $(ENGINE) common/metrics common/http master/data master/report master/score \
  master/api master/plan master/egress master/train)

# commands on a session file: train, eval, predict, plan, check
$(call layer, master/run, $(ENGINE) common/hf master/data master/report master/score master/history master/api \
  master/plan master/egress master/train master/watch)

# files of weights that workers were given, of state and caches that they keep; attempts of sessions
$(call layer, worker/store, common/tensor common/config common/weights kernels)

# sessions, methods, loading, what a worker shows of itself
$(call layer, worker/service, $(ENGINE) common/metrics worker/store)

# cleave-master: its commands
$(call program, master, $(ENGINE) master/tokens master/documents master/data master/report master/history master/api \
  master/plan master/egress master/train master/watch master/run)

# cleave-worker: the daemon
$(call program, worker, $(ENGINE) common/metrics common/http kernels/load worker/store worker/service, \
  sys/socket sys/un)
