# SPDX-License-Identifier: Apache-2.0
# One non-recursive Makefile. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := all

BUILD ?= release
OUT ?= build/$(BUILD)
CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
CLANG ?= clang
PREFIX ?= /usr/local
DESTDIR ?=
PYTHON ?= /usr/bin/python3
V ?= 0
Q := $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V)),,@printf '  %-5s %s\n' '$(1)' '$(2)')

VERSION := $(shell cat VERSION)

# Folders, what each may include, and its libraries.
include common/layers.mk

# ---- flags --------------------------------------------------------------------------------------
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
ifeq ($(CI),true)
WARN += -Werror
endif
CFLAGS_release := -O2 -g1
CFLAGS_debug := -O0 -g
CFLAGS_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
CFLAGS_tsan := -O1 -g -fsanitize=thread
# clang counts an empty `...` of a macro as an extension, which C23 has.
CFLAGS_fuzz := -O1 -g -Wno-pass-failed -Wno-gnu-zero-variadic-macro-arguments -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined \
               -fprofile-instr-generate -fcoverage-mapping
LDFLAGS_fuzz := -fsanitize=address,undefined
LDFLAGS_asan := -fsanitize=address,undefined
LDFLAGS_tsan := -fsanitize=thread
# -ffp-contract=off: an expression gives the same bits wherever the compiler places it.
CPPFLAGS += -I. -I$(OUT)/gen -D_GNU_SOURCE -DCLV_VERSION='"$(VERSION)"' -DCLV_SANITIZED=$(if $(filter asan tsan,$(BUILD)),1,0) $(MUTATE)
CFLAGS += -std=gnu17 -fvisibility=hidden -fPIC -pthread -ffp-contract=off $(WARN) $(CFLAGS_$(BUILD))
CFLAGS_kernels/ops := $(if $(filter release,$(BUILD)),-O3)
CFLAGS_kernels/ref := $(if $(filter release,$(BUILD)),-O3)
# -fno-math-errno: sqrtf is an instruction, and -fno-trapping-math: both sides of a `?:` may be
# computed, so that loops with them can be wide; the bits are the same.
CFLAGS_kernels/cpu := $(if $(filter release,$(BUILD)),-O3 -fno-math-errno -fno-trapping-math)
# Except for release, records that were given back are marked: a test sees who uses them still.
CFLAGS_common/fair := $(if $(filter release,$(BUILD)),,-DCLV_MARKS_IDLE)
CFLAGS_tests/unit/fair := $(CFLAGS_common/fair)
# The simulation tells the sanitizers what they are to know.
CFLAGS_tests/gpu/sim := $(if $(filter asan tsan,$(BUILD)),-fno-sanitize=all -O2,$(if $(filter release,$(BUILD)),-O3))
CFLAGS_master/data := $(if $(filter release,$(BUILD)),-O3)
# Tests run once or twice: to optimise one takes longer than to run it.
CFLAGS_ONCE := $(if $(filter release,$(BUILD)),-O1)
# They are linked by the quicker of the linkers, where it is there.
LDFLAGS_ONCE := $(if $(filter release,$(BUILD)),$(if $(shell command -v ld.gold),-fuse-ld=gold))
LDFLAGS += -pthread $(LDFLAGS_$(BUILD))
LDLIBS += -lm

# ---- CUDA=auto builds the GPU's library where there is a toolkit, 1 must, 0 does not -------------
CUDA ?= auto
ifeq ($(origin NVCC),undefined)
NVCC := $(if $(filter 0,$(CUDA)),,$(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc)))
endif
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
# What is missing, by name.
CUDA_MISSES := $(if $(filter 0,$(CUDA)),CUDA,$(if $(NVCC),,nvcc) $(if $(shell command -v g++),,g++) \
               $(foreach h,cuda_runtime_api.h cublasLt.h cudnn_adv.h cudnn_graph.h,$(if $(wildcard $(CUDA_HOME)/include/$(h)),,$(h))))
ifeq ($(strip $(CUDA_MISSES)),)
CUDA_LIBRARY := $(OUT)/libcleave_cuda.so
else ifeq ($(CUDA),1)
$(error CUDA=1, and there is no $(CUDA_MISSES))
endif
# -fmad=false: as -ffp-contract=off above, and the numbers that the CPU has.
NVCC_FLAGS := -std=c++17 -O3 -fmad=false -lineinfo -gencode arch=compute_80,code=sm_80 \
              -gencode arch=compute_90,code=[sm_90,compute_90] -Werror=all-warnings -Wreorder -Wdefault-stream-launch \
              -Xptxas=-v -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wshadow,-Wconversion,-Wsign-conversion \
              -Xcompiler=-Wdouble-promotion,-Wcast-qual,-Wnull-dereference,-Werror
CFLAGS_kernels/cuda/nvidia := -isystem $(CUDA_HOME)/include -DCUDNN_WARN_DEPRECATED -Wconversion $(if $(findstring clang,$(CC)),,-Werror)

# ---- sources ------------------------------------------------------------------------------------
src_of = $(wildcard $(1)/*.c)
obj_of = $(if $(filter kernels/ops,$(1)),$(OPS_OBJS),$(patsubst %.c,$(OUT)/%.o,$(call src_of,$(1))))
lib_of = $(OUT)/lib/$(subst /,_,$(1)).a
# The file of an op is compiled twice, with REAL float and with REAL double.
OP_SRCS := $(shell sed -n 's|^OP([0-9]*, *[A-Z0-9_]*, *\([a-z0-9_]*\)).*|kernels/ops/\1.c|p' kernels/ops.def)
OPS_OBJS := $(patsubst %.c,$(OUT)/%.o,$(filter-out $(OP_SRCS),$(wildcard kernels/ops/*.c))) \
            $(foreach bits,f32 f64,$(OP_SRCS:%.c=$(OUT)/%.$(bits).o))
# a folder's link closure, highest layer first
closure = $(foreach f,$(call reverse,$(FOLDERS)),$(if $(filter $(f),$(call expand,$(1))),$(f)))
reverse = $(if $(1),$(call reverse,$(wordlist 2,$(words $(1)),$(1))) $(firstword $(1)))
expand = $(sort $(1) $(USES_$(1)) $(foreach u,$(USES_$(1)),$(USES_$(u))) $(foreach u,$(USES_$(1)),$(foreach w,$(USES_$(u)),$(USES_$(w)))))
libs_for = $(foreach f,$(call closure,$(1)),$(call lib_of,$(f)))
ldlibs_for = $(sort $(foreach f,$(call closure,$(1)),$(LIBS_$(f)))) -lm

GEN := $(OUT)/gen
GEN_OBJS := $(GEN)/cleave/v1/cleave.pb-c.o $(GEN)/grpc/health/v1/health.pb-c.o \
            $(GEN)/grpc/reflection/v1alpha/reflection.pb-c.o $(GEN)/descriptors.o
GEN_HEADERS := $(patsubst %.o,%.h,$(filter %.pb-c.o,$(GEN_OBJS)))
GRPC_PROTO := /usr/share/grpc-proto

BINARIES := $(OUT)/cleave-master $(OUT)/cleave-worker
LIBCLEAVE := $(OUT)/libcleave.so.0 $(OUT)/libcleave.so $(OUT)/libcleave.a $(OUT)/cleave.pc $(OUT)/cleave-uninstalled.pc

.PHONY: all help test demo check-layers print-layers objects lint format bench bench-pipeline bench-transformers golden fuzz \
        fuzzers fuzz-coverage parity token-golden token-parity hf-golden hf-parity hf-base hf-files peft-parity seed-000 learns mutate install uninstall clean deps deps-test manuals \
        deps-parity sanitize soak soak-mixed attacks schedules look-proof references faults t \
        check print-commands simulate programs gpu-tests gpu-sanitized gpu-dry gpu-bundle
all: $(BINARIES) $(LIBCLEAVE) $(CUDA_LIBRARY) manuals

help:
	@echo 'make demo          train Fashion-MNIST in U shape over a master and two workers, with mutual TLS'
	@echo 'make test          build and run the whole test suite (installs missing Debian packages)'
	@echo 'make t T=NAME      any one test, with its output: a program, a script or one test in it'
	@echo 'make check         what holds for the tree itself: layers, lint, format, links, lengths, ...'
	@echo 'make compile_commands.json  how each C file is compiled, for editors'
	@echo 'make all           cleave-master, cleave-worker and libcleave under $(OUT)'
	@echo 'make manuals       manual pages and shell completions under $(OUT)/share'
	@echo 'make unit-FOLDER   the unit tests of one folder (unit-base, unit-graph, ...)'
	@echo 'make parity        compare with PyTorch, step by step (installs python3-torch)'
	@echo 'make hf-parity     models of Hugging Face beside ours: outputs, gradients, 100 steps of AdamW each'
	@echo 'make hf-base       BERT and LayoutLM of base size over a worker, beside transformers: outputs, gradients, three steps'
	@echo 'make hf-files      what sessions export in transformers and peft, and what those save in sessions: the same outputs'
	@echo 'make peft-parity   adapters of sessions beside those of peft: outputs, gradients, 100 steps, files both ways'
	@echo 'make token-parity  real texts through our tokenizers and the library of Hugging Face: the same tokens'
	@echo 'make seed-000      documents, a LayoutLM over two workers from pretrained weights, and the same in PyTorch'
	@echo 'make golden        numbers of PyTorch for new cases of ops (installs python3-torch)'
	@echo 'make learns        ResNet18 on Fashion-MNIST through pipelines, and in PyTorch: equally accurate'
	@echo 'make look-proof    200 random fronts and heads: nothing that plan calls mixed is read above the limits'
	@echo 'make bench         speed as ratios against peers measured in the same run; STRICT=1: fails if one is missed surely'
	@echo 'make bench-pipeline  ResNet50 split and schedules, the same way (BENCH_ARGS=--quick: that it runs)'
	@echo 'make bench-transformers  steps of BERT, GPT-2, Qwen2 and LayoutLM against the newest PyTorch, the same way'
	@echo 'make soak          100,000 steps of a program on the C API: what grows on either side'
	@echo 'make soak-mixed    SOAK_SECONDS (7200) of sessions of all kinds on two workers: what grows, and whether status and metrics agree'
	@echo 'make attacks       floods of connections, complaints and loads beside a training run: its bits, its rate, the log; pauses'
	@echo 'make schedules     1,000 random and 1,000 damaged schedules, hundreds through session files, and transformers cut everywhere'
	@echo 'make faults        the seeds and the demo while control messages are lost, doubled and late: the same bytes'
	@echo 'make references    10,000 random programs of references over a network that loses, doubles and reorders'
	@echo 'make simulate      10,000 random programs over a simulated network: delays, cut lanes, dead workers'
	@echo 'make programs      5,000 such programs over real daemons, and 1,250 while a worker dies and comes back'
	@echo 'make fuzz          every fuzz target for FUZZ_SECONDS (60) under ASan and UBSan'
	@echo 'make fuzz-coverage lines of each parser that the checked-in corpora reach, against floors'
	@echo 'make mutate        disable each security guard, and break each state machine, in turn, and show a test fail'
	@echo 'make sanitize      the suite under address/undefined and thread sanitizers'
	@echo 'make gpu-tests     the cuda backend on the simulated device'
	@echo 'make gpu-sanitized the same under address/undefined and thread sanitizers'
	@echo 'make gpu-dry       the bundle for a GPU: its size, and each piece on the simulated device beside the newest PyTorch'
	@echo 'make proof         every long proof whose row in tests/PROOFS.md is missing or stale; PROOF=name, PROOF_SCALE=short'
	@echo 'make proof-status  that table, with what is stale'
	@echo 'make gpu-bundle    what a machine with a GPU needs of us, packed (tests/gpu/BUNDLE.md)'
	@echo 'make check-layers  includes against the layer table'
	@echo 'make lint format   cppcheck; clang-format, and comments broken at 100 columns'
	@echo 'make install       to $$(DESTDIR)$$(PREFIX)'
	@echo 'variables: BUILD=release|debug|asan|tsan CC=gcc|clang CUDA=auto|0|1 V=1'

# ---- packages -----------------------------------------------------------------------------------
DEPS := gcc make pkg-config libgrpc-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler \
        grpc-proto libssl-dev libdnnl-dev libopenblas-dev libfyaml-dev libjansson-dev zlib1g-dev \
        libpng-dev libjpeg62-turbo-dev libmicrohttpd-dev libutf8proc-dev \
        librandom123-dev libisal-dev dataset-fashion-mnist openssl python3
DEPS_TEST := g++ libcmocka-dev iproute2 man-db bash-completion zsh systemd prometheus python3-grpcio python3-grpc-tools python3-protobuf \
        poppler-utils tesseract-ocr python3-numpy clang libclang-rt-14-dev cppcheck clang-format
DEPS_PARITY := python3-torch python3-torchvision python3-numpy python3-venv

deps:
	$(Q)tests/install-packages $(DEPS)
deps-test:
	$(Q)tests/install-packages $(DEPS) $(DEPS_TEST)
deps-parity:
	$(Q)tests/install-packages $(DEPS) $(DEPS_TEST) $(DEPS_PARITY)

# ---- rules --------------------------------------------------------------------------------------
$(OUT)/flags: FORCE
	@mkdir -p $(@D); echo '$(CC) $(CPPFLAGS) $(filter-out -Werror,$(CFLAGS))' > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
FORCE:

$(GEN)/cleave/v1/cleave.pb-c.c $(GEN)/cleave/v1/cleave.pb-c.h &: proto/cleave/v1/cleave.proto
	$(call say,PROTO,$<)
	@mkdir -p $(GEN)
	$(Q)protoc-c -Iproto --c_out=$(GEN) cleave/v1/cleave.proto
$(GEN)/grpc/%.pb-c.c $(GEN)/grpc/%.pb-c.h &: $(GRPC_PROTO)/grpc/%.proto
	@mkdir -p $(GEN)
	$(Q)protoc-c -I$(GRPC_PROTO) --c_out=$(GEN) grpc/$*.proto
$(GEN)/descriptors.c: proto/cleave/v1/cleave.proto
	@mkdir -p $(GEN)
	$(Q)protoc -Iproto -I$(GRPC_PROTO) --include_imports --descriptor_set_out=$(GEN)/cleave.desc \
	  cleave/v1/cleave.proto grpc/health/v1/health.proto grpc/reflection/v1alpha/reflection.proto
	$(Q){ echo '#include <stddef.h>'; echo 'extern const unsigned char clv_descriptor_set[];'; \
	  echo 'extern const size_t clv_descriptor_set_len;'; \
	  echo 'const unsigned char clv_descriptor_set[] = {'; od -An -v -tu1 $(GEN)/cleave.desc | sed 's/\([0-9]\+\)/\1,/g'; \
	  echo '};'; echo 'const size_t clv_descriptor_set_len = sizeof clv_descriptor_set;'; } > $@
$(GEN)/%.o: $(GEN)/%.c
	$(Q)$(CC) $(CPPFLAGS) $(filter-out -Wpedantic,$(CFLAGS)) -c $< -o $@

$(call obj_of,common/net/wire) $(patsubst %.c,$(OUT)/%.o,$(wildcard tests/unit/wire/*.c)): | $(GEN_HEADERS)
.SECONDARY: $(GEN_OBJS:.o=.c) $(GEN_HEADERS)

# The ops that a backend registers, one line each.
$(GEN)/cpu_ops.def: FORCE
	@mkdir -p $(@D); sed -n 's/^CLV_CPU_OP(\([a-z0-9_]*\),.*/CPU_OP(\1)/p' kernels/cpu/*.c > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(OUT)/kernels/cpu/backend.o: $(GEN)/cpu_ops.def

$(GEN)/cuda_ops.def: FORCE
	@mkdir -p $(@D); sed -n 's/^CLV_CUDA_OP(\([a-z0-9_]*\)).*/CUDA_OP(\1)/p' kernels/cuda/*.c > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(OUT)/kernels/cuda/backend.o $(OUT)/master/ops.o: $(GEN)/cuda_ops.def

# The launchers that its kernels call, which are compiled for a device.
$(GEN)/cuda_launches.def: $(call lib_of,kernels/cuda)
	@mkdir -p $(@D); nm $< | awk '$$1 == "U" && $$2 ~ /^clv_gpu_/ { called[$$2] } NF == 3 { here[$$3] } \
	  END { for (name in called) if (!(name in here)) print "LAUNCH(" name ")" }' | sort > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(OUT)/kernels/cuda/paper/launches.o: $(GEN)/cuda_launches.def

compile = $(CC) $(CPPFLAGS) $(CFLAGS) $(CFLAGS_$(patsubst %/,%,$(dir $(1)))) $(if $(filter tests/unit/% tests/e2e/% tests/gpu/test_%,$(1)),$(CFLAGS_ONCE)) $(if $(filter $(OP_SRCS),$(1)),-DREAL=$(or $(2),float)) -c $(1)
$(OUT)/%.o: %.c $(OUT)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(call compile,$<) -MMD -MP -o $@
$(OUT)/kernels/ops/%.f32.o: kernels/ops/%.c $(OUT)/flags
	$(call say,CC,$< (f32))
	@mkdir -p $(@D)
	$(Q)$(call compile,$<,float) -MMD -MP -o $@
$(OUT)/kernels/ops/%.f64.o: kernels/ops/%.c $(OUT)/flags
	$(call say,CC,$< (f64))
	@mkdir -p $(@D)
	$(Q)$(call compile,$<,double) -MMD -MP -o $@

define archive_rule
$(call lib_of,$(1)): $(call obj_of,$(1)) $(if $(filter common/net/wire,$(1)),$(GEN_OBJS))
	@mkdir -p $$(@D)
	$$(Q)rm -f $$@; ar rcs $$@ $$^
endef
$(foreach f,$(FOLDERS),$(eval $(call archive_rule,$(f))))
# What tests/check-circles reads.
objects: $(foreach f,$(FOLDERS) $(PROGRAMS),$(call obj_of,$(f)))

# gRPC finds the worker's accept4 (worker/accept_guard.c) before the C library's, and its SSL_read
# (worker/read_guard.c) before OpenSSL's.
EXPORT_GUARDS := -Wl,--export-dynamic-symbol=accept4,--export-dynamic-symbol=SSL_read
link = $(Q)$(CC) $(LDFLAGS) $(1) -o $@ $(2) -Wl,--start-group $(call libs_for,$(3)) -Wl,--end-group -Wl,--as-needed $(call ldlibs_for,$(3)) $(4)

$(OUT)/cleave-master: $(call obj_of,master) $(call libs_for,master)
	$(call say,LINK,$@)
	$(call link,,$(call obj_of,master),master)
$(OUT)/cleave-worker: $(call obj_of,worker) $(call libs_for,worker)
	$(call say,LINK,$@)
	$(call link,$(EXPORT_GUARDS),$(call obj_of,worker),worker)

# The library of the GPU, which no program is linked with: the backend, its kernels, NVIDIA's
# runtime inside it. Kernels that spill registers fail by name.
$(OUT)/nvcc.flags: FORCE
	@mkdir -p $(@D); echo '$(NVCC) $(NVCC_FLAGS) $(CPPFLAGS)' > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(OUT)/nvcc/%.o: %.cu $(OUT)/nvcc.flags kernels/cuda/nvidia/spills
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_FLAGS) $(CPPFLAGS) -MMD -MP -MF $(@:.o=.d) -o $@ -c $< > $(@:.o=.ptxas) 2>&1 || \
	  { cat $(@:.o=.ptxas) >&2; rm -f $@; exit 1; }
	$(Q)kernels/cuda/nvidia/spills $(@:.o=.ptxas) || { rm -f $@; exit 1; }
CUDA_OBJS := $(patsubst %.cu,$(OUT)/nvcc/%.o,$(wildcard kernels/cuda/*.cu)) $(call obj_of,kernels/cuda/nvidia)
cuda_libs = -Wl,--start-group $(call libs_for,kernels/cuda) -Wl,--end-group -L$(CUDA_HOME)/lib64 -lcudart_static \
            -Wl,--as-needed $(call ldlibs_for,kernels/cuda) -lstdc++ -ldl -lrt
$(OUT)/libcleave_cuda.so: $(CUDA_OBJS) $(call libs_for,kernels/cuda)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-z,defs,-z,relro,-z,now,--exclude-libs,ALL -o $@ $(CUDA_OBJS) $(cuda_libs)

# What cuDNN would do on a device that is only described; what a device gives.
ON_DEVICE := $(addprefix $(OUT)/gpu/,test_cuda_types test_cuda_bf16 test_together test_recording)
GPU_PROGRAMS := $(if $(CUDA_LIBRARY),$(OUT)/gpu/plan_convs $(OUT)/gpu/rates $(OUT)/gpu/on_device $(OUT)/gpu/steps $(OUT)/gpu/shares $(ON_DEVICE))
CFLAGS_tests/gpu/nvidia := $(CFLAGS_kernels/cuda/nvidia)
$(OUT)/gpu/plan_convs $(OUT)/gpu/rates: $(OUT)/gpu/%: $(OUT)/tests/gpu/nvidia/%.o $(CUDA_OBJS) $(call libs_for,kernels/cuda)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(CUDA_OBJS) $(cuda_libs)

# What the programs say of themselves: manual pages and shell completions.
SHARED := man/man1/cleave-master.1 man/man1/cleave-worker.1 man/man5/cleave-session.yaml.5 man/man5/cleave-egress.policy.yaml.5 man/man5/cleave-worker.yaml.5 \
          man/man7/cleave-ops.7 cleave/ops.json \
          bash-completion/completions/cleave-master bash-completion/completions/cleave-worker \
          zsh/site-functions/_cleave-master zsh/site-functions/_cleave-worker
manuals: $(SHARED:%=$(OUT)/share/%)
print_share = @mkdir -p $(@D); $< $(1) > $@.tmp && mv $@.tmp $@
$(OUT)/share/man/man1/%.1: $(OUT)/%
	$(call print_share,man)
$(OUT)/share/man/man5/cleave-session.yaml.5: $(OUT)/cleave-master
	$(call print_share,man cleave-session.yaml)
$(OUT)/share/man/man5/cleave-egress.policy.yaml.5: $(OUT)/cleave-master
	$(call print_share,man cleave-egress.policy.yaml)
$(OUT)/share/man/man5/cleave-worker.yaml.5: $(OUT)/cleave-worker
	$(call print_share,man cleave-worker.yaml)
$(OUT)/share/man/man7/cleave-ops.7: $(OUT)/cleave-master
	$(call print_share,man cleave-ops)
$(OUT)/share/cleave/ops.json: $(OUT)/cleave-master
	$(call print_share,ops --json)
$(OUT)/share/bash-completion/completions/%: $(OUT)/%
	$(call print_share,completion bash)
$(OUT)/share/zsh/site-functions/_%: $(OUT)/%
	$(call print_share,completion zsh)

# The library of the C API: only what cleave.h declares is visible. The archive is one object whose
# other symbols were made local, so that it goes with any program.
API_LIBS := $(call libs_for,master/api)
api_members = -Wl,--whole-archive $(call lib_of,master/api) -Wl,--no-whole-archive \
              -Wl,--start-group $(API_LIBS) -Wl,--end-group
$(OUT)/libcleave.so.0: $(API_LIBS)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,libcleave.so.0 -o $@ $(api_members) -Wl,--as-needed $(call ldlibs_for,master/api)
$(OUT)/libcleave.so: $(OUT)/libcleave.so.0
	$(Q)ln -sf $(<F) $@
$(OUT)/libcleave.a: $(API_LIBS)
	$(call say,AR,$@)
	$(Q)$(CC) -r -nostdlib -o $(OUT)/libcleave.o $(api_members)
	$(Q)objcopy --localize-hidden $(OUT)/libcleave.o
	$(Q)rm -f $@; ar rcs $@ $(OUT)/libcleave.o
# A program finds the library where it was installed, wherever that is; in /usr every loader looks.
$(OUT)/cleave.pc: Makefile VERSION
	@mkdir -p $(@D)
	$(Q)printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' 'Name: cleave' \
	  'Description: Distributed autograd contexts over mutual TLS' 'Version: $(VERSION)' \
	  'Cflags: -I$${includedir}' 'Libs: -L$${libdir} -Wl,-rpath,$${libdir} -lcleave' \
	  'Libs.private: -pthread $(call ldlibs_for,master/api)' > $@
# The same where it was built: pkg-config prefers this one where it finds both.
$(OUT)/cleave-uninstalled.pc: Makefile VERSION
	@mkdir -p $(@D)
	$(Q)printf '%s\n' 'libdir=$(abspath $(OUT))' '' 'Name: cleave' \
	  'Description: Distributed autograd contexts over mutual TLS' 'Version: $(VERSION)' \
	  'Cflags: -I$(CURDIR)/master/api' 'Libs: -L$${libdir} -Wl,-rpath,$${libdir} -lcleave' > $@

# ---- unit tests: tests/unit/<folder>/test_<module>.c, one program each ---------------------------
UNIT_SRCS := $(wildcard tests/unit/*/test_*.c) $(wildcard tests/ops/test_*.c)
unit_name = $(patsubst %.c,$(OUT)/%,$(1))
folder_of_unit = $(or $(filter %/$(1),$(FOLDERS)),$(filter $(1),$(FOLDERS)))
UNIT_LDFLAGS_test_accept_guard := $(EXPORT_GUARDS)
UNIT_LDFLAGS_test_egress_record := -Wl,--wrap=fdatasync,--wrap=clv_now_ns
UNIT_LDFLAGS_test_widths := -Wl,--wrap=clv_cpu_width
UNIT_OBJS_test_accept_guard := $(OUT)/worker/accept_guard.o
UNIT_LDFLAGS_test_read_guard := $(EXPORT_GUARDS)
UNIT_OBJS_test_read_guard := $(OUT)/worker/accept_guard.o $(OUT)/worker/read_guard.o

# `make t T=program:test`: what picks one test of a cmocka program
ONE := $(OUT)/tests/unit/one.o

define unit_rule
$(OUT)/tests/$(1)/$(2): $(OUT)/tests/$(1)/$(2).o $(ONE) $(UNIT_OBJS_$(2)) $(call libs_for,$(3)) $(if $(filter rpc,$(notdir $(1))),$(call lib_of,common/net/tls))
	$$(call link,$$(LDFLAGS_ONCE) $$(UNIT_LDFLAGS_$(2)),$$(filter %.o,$$^),$(3),$(if $(filter rpc,$(notdir $(1))),$(call lib_of,common/net/tls) $(call lib_of,common/base) -lssl -lcrypto) -lcmocka)
UNIT_PROGRAMS += $(OUT)/tests/$(1)/$(2)
UNIT_OF_$(notdir $(1)) += $(OUT)/tests/$(1)/$(2)
endef
$(foreach s,$(wildcard tests/unit/*/test_*.c),$(eval $(call unit_rule,unit/$(notdir $(patsubst %/,%,$(dir $(s)))),$(basename $(notdir $(s))),$(call folder_of_unit,$(notdir $(patsubst %/,%,$(dir $(s))))))))
$(foreach s,$(wildcard tests/ops/test_*.c),$(eval $(call unit_rule,ops,$(basename $(notdir $(s))),common/model/models)))

# The cases of the ops as JSON, and the numbers of PyTorch for those that have none yet.
$(OUT)/ops/print_cases: $(OUT)/tests/ops/print_cases.o $(call libs_for,common/model/models)
	@mkdir -p $(@D)
	$(call link,,$(filter %.o,$^),common/model/models)
units: $(OUT)/ops/print_cases
golden: deps-parity $(OUT)/ops/print_cases $(BINARIES)
	$(Q)$(PYTHON) tests/golden/make_golden.py $(OUT)/ops/print_cases
	$(Q)for t in $$(grep -l '^import golden$$' tests/net/*/test_*.py); do $(PYTHON) $$t --golden || exit 1; done

.SECONDEXPANSION:
unit-%: $$(UNIT_OF_$$*)
	$(Q)tests/run-tests --out $(OUT) $(UNIT_OF_$*)

# Tests over both sides in one process: linked with everything.
ALL_LIBS = $(foreach f,$(call reverse,$(FOLDERS)),$(call lib_of,$(f)))
ALL_LDLIBS = $(sort $(foreach f,$(FOLDERS),$(LIBS_$(f)))) -lm
$(OUT)/e2e/test_hot_path: E2E_LDFLAGS := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc
# A row for each function of the headers that lets go of something, and for each argument of the
# public one that may not be NULL.
$(GEN)/closers.inc $(GEN)/nulls.inc: $(GEN)/%.inc: FORCE
	@mkdir -p $(@D); tests/$*.py > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(OUT)/tests/e2e/test_closers.o: $(GEN)/closers.inc $(GEN_HEADERS)
$(OUT)/tests/e2e/test_nulls.o: $(GEN)/nulls.inc $(GEN_HEADERS)
E2E := $(patsubst tests/e2e/%.c,$(OUT)/e2e/%,$(wildcard tests/e2e/test_*.c))
$(OUT)/e2e/%: $(OUT)/tests/e2e/%.o $(ONE) $$(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $(LDFLAGS_ONCE) $(E2E_LDFLAGS) -o $@ $< $(ONE) -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS) -lcmocka
UNIT_PROGRAMS += $(E2E)

# The same binaries and library with tests/faults/faults.c between their messages and the network.
FAULTS := $(OUT)/faults/cleave-master $(OUT)/faults/cleave-worker $(OUT)/faults/libcleave.so.0
FAULTS_OBJ := $(OUT)/tests/faults/faults.o
FAULTS_LDFLAGS := -Wl,--wrap=clv_link_send
$(OUT)/faults/cleave-master: $(call obj_of,master) $(FAULTS_OBJ) $(call libs_for,master)
	@mkdir -p $(@D)
	$(call link,$(FAULTS_LDFLAGS),$(call obj_of,master) $(FAULTS_OBJ),master)
$(OUT)/faults/cleave-worker: $(call obj_of,worker) $(FAULTS_OBJ) $(call libs_for,worker)
	@mkdir -p $(@D)
	$(call link,$(EXPORT_GUARDS) $(FAULTS_LDFLAGS),$(call obj_of,worker) $(FAULTS_OBJ),worker)
$(OUT)/faults/libcleave.so.0: $(FAULTS_OBJ) $(API_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $(FAULTS_LDFLAGS) -shared -Wl,-soname,libcleave.so.0 -o $@ $(FAULTS_OBJ) $(api_members) -Wl,--as-needed $(call ldlibs_for,master/api)

# A worker whose NVIDIA devices are simulated.
GPU_WORKER := $(OUT)/gpu/cleave-worker
comma := ,
GPU_WORKER_LDFLAGS := $(EXPORT_GUARDS) -Wl,--wrap=clv_cuda_load
$(GPU_WORKER): $(call obj_of,worker) $(OUT)/tests/gpu/worker/worker.o $$(SIM_LIB) $(call libs_for,worker) $(call lib_of,kernels/cuda)
	@mkdir -p $(@D)
	$(call link,$(GPU_WORKER_LDFLAGS),$(call obj_of,worker) $(OUT)/tests/gpu/worker/worker.o -Wl$(comma)--start-group $(SIM_LIB) $(call lib_of,kernels/cuda) -Wl$(comma)--end-group,worker,-lstdc++)

# The protocol of references on its own, over a network that loses, doubles and reorders.
$(OUT)/faults/references: $(OUT)/tests/faults/references.o $$(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS)
UNIT_PROGRAMS += $(OUT)/faults/references

# A master and three workers on a simulated network and clock.
SIMULATE_OBJS := $(patsubst %.c,$(OUT)/%.o,$(wildcard tests/simulate/*.c))
$(OUT)/simulate/simulate: $(SIMULATE_OBJS) $$(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(SIMULATE_OBJS) -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS)
UNIT_PROGRAMS += $(OUT)/simulate/simulate

# The same programs over real daemons; tests/simulate/daemons/test_daemons.py starts these.
DAEMONS := $(OUT)/simulate/daemons
DAEMONS_OBJS := $(OUT)/tests/simulate/daemons/daemons.o \
                $(filter-out %/simulate.o %/network.o %/world.o %/worker.o,$(SIMULATE_OBJS))
$(DAEMONS): $(DAEMONS_OBJS) $$(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(DAEMONS_OBJS) -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS)

# Two links on a simulated network and clock.
LINKS_OBJS := $(OUT)/tests/simulate/links/links.o $(OUT)/tests/simulate/network.o
$(OUT)/simulate/links: $(LINKS_OBJS) $$(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(LINKS_OBJS) -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS)
UNIT_PROGRAMS += $(OUT)/simulate/links

# The simulated device: kernels/cuda's kernels, compiled by the host's compiler, and what they run
# on.
CXX_WARN := $(filter-out -Wpedantic -Wstrict-prototypes -Wmissing-prototypes,$(WARN))
CXX_COMPILE = $(CXX) $(CPPFLAGS) -std=c++17 -fvisibility=hidden -fPIC -pthread -ffp-contract=off $(CXX_WARN) $(CFLAGS_$(BUILD))
# Without a sanitizer every load and store of a kernel is checked by tests/gpu/sim/checks.c.
KERNEL_CHECKS := $(if $(filter release debug,$(BUILD)),-fsanitize=kernel-address -fsanitize=alignment --param asan-stack=0 --param asan-globals=0 \
                 --param asan-instrumentation-with-call-threshold=0)
CFLAGS_tests/gpu/libraries := $(if $(findstring clang,$(CC)),,$(KERNEL_CHECKS))
$(OUT)/%.cu.o: %.cu tests/gpu/device.h $(OUT)/flags Makefile
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX_COMPILE) $(KERNEL_CHECKS) -include tests/gpu/device.h -x c++ -c $< -MMD -MP -o $@
SIM_SOURCES := $(filter-out tests/gpu/test_%,$(wildcard tests/gpu/*.c tests/gpu/sim/*.c tests/gpu/libraries/*.c))
SIM_LIB := $(OUT)/lib/tests_gpu.a
$(SIM_LIB): $(SIM_SOURCES:%.c=$(OUT)/%.o) $(patsubst %,$(OUT)/%.o,$(wildcard kernels/cuda/*.cu tests/gpu/*.cu))
	@mkdir -p $(@D)
	$(Q)rm -f $@; ar rcs $@ $^
GPU_TESTS := $(patsubst %.c,$(OUT)/%,$(wildcard tests/gpu/test_*.c))
GPU_LIBS := $(SIM_LIB) $(call lib_of,kernels/cuda) $(call libs_for,common/model/models)
GPU_NODE_LIBS := $(SIM_LIB) $(call lib_of,kernels/cuda) $(call libs_for,common/engine)
$(addprefix $(OUT)/tests/gpu/,test_node test_chunks): %: %.o $(ONE) $(GPU_NODE_LIBS)
	$(Q)$(CC) $(LDFLAGS) $(LDFLAGS_ONCE) -o $@ $< $(ONE) -Wl,--start-group $(GPU_NODE_LIBS) -Wl,--end-group $(call ldlibs_for,common/engine) -lstdc++ -lcmocka
$(filter-out %/test_node %/test_chunks,$(GPU_TESTS)): %: %.o $(ONE) $(GPU_LIBS)
	$(Q)$(CC) $(LDFLAGS) $(LDFLAGS_ONCE) -o $@ $< $(ONE) -Wl,--start-group $(GPU_LIBS) -Wl,--end-group $(call ldlibs_for,common/model/models) -lstdc++ -lcmocka
UNIT_PROGRAMS += $(GPU_TESTS)
# What the device must find; run by its script.
PLANTS := $(OUT)/tests/gpu/plants/plants
$(PLANTS): %: %.o %.cu.o $(GPU_LIBS)
	$(Q)$(CC) $(LDFLAGS) $(LDFLAGS_ONCE) -o $@ $@.o $@.cu.o -Wl,--start-group $(GPU_LIBS) -Wl,--end-group $(call ldlibs_for,common/model/models) -lstdc++
units: $(PLANTS)
# Whole sessions on it, of which each process is built as this one is. With a sanitizer the longer
# ones take many minutes.
GPU_SESSIONS := tests/gpu/test_sim_worker.py $(if $(filter asan tsan,$(BUILD)),,$(addprefix tests/net/training/,test_cuda.py test_two_devices.py test_device_memory.py) tests/net/hostile/test_device_bases.py)
gpu-tests: $(GPU_TESTS) $(PLANTS) $(BINARIES) $(OUT)/libcleave.so.0 $(GPU_WORKER)
	$(Q)tests/run-tests --out $(OUT) $(GPU_TESTS) tests/gpu/plants/test_plants.py $(GPU_SESSIONS)

# The tests of the simulated device on a real one, and what a machine that has one needs of us.
$(OUT)/gpu/on_device: $(patsubst %,$(OUT)/tests/gpu/%.o,test_cuda nvidia/on_device) $(ONE) $(CUDA_OBJS) $(call libs_for,common/model/models)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(cuda_libs) -Wl,--start-group $(call libs_for,common/model/models) -Wl,--end-group \
	  $(call ldlibs_for,common/model/models) -lcmocka
$(ON_DEVICE): $(OUT)/gpu/%: $(OUT)/tests/gpu/%.o $(OUT)/tests/gpu/nvidia/on_device.o $(ONE) $(CUDA_OBJS) $(call libs_for,common/model/models)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(cuda_libs) -Wl,--start-group $(call libs_for,common/model/models) -Wl,--end-group \
	  $(call ldlibs_for,common/model/models) -lcmocka
# Steps of networks, and kernels beside copies, on either.
GPU_SPEED := $(OUT)/tests/gpu/speed/steps $(OUT)/tests/gpu/speed/shares
$(OUT)/gpu/shares $(OUT)/tests/gpu/speed/shares: $(OUT)/tests/gpu/speed/shares_more.o
$(OUT)/gpu/steps $(OUT)/gpu/shares: $(OUT)/gpu/%: $(OUT)/tests/gpu/speed/%.o $(OUT)/tests/gpu/nvidia/on_device.o $(CUDA_OBJS) $(call libs_for,common/model/optim) $(call libs_for,common/model/models)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(cuda_libs) -Wl,--start-group $(call libs_for,common/model/optim) $(call libs_for,common/model/models) -Wl,--end-group \
	  $(call ldlibs_for,common/model/models)
$(GPU_SPEED): %: %.o $(GPU_LIBS) $(call libs_for,common/model/optim)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(GPU_LIBS) $(call libs_for,common/model/optim) -Wl,--end-group $(call ldlibs_for,common/model/models) -lstdc++
units: $(GPU_SPEED)
gpu-bundle: all
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) CUDA=1 $(GPU_PROGRAMS) $(GPU_WORKER) $(GPU_TESTS) $(GPU_SPEED)
	$(Q)tests/gpu/bundle $(OUT)

# Programs on the public API, compiled as a user's are: against an installed tree, through
# pkg-config.
TREE := $(abspath $(OUT))/tree
TREE_PKG = PKG_CONFIG_LIBDIR=$(TREE)$(PREFIX)/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$(TREE) pkg-config
$(TREE)/installed: $(BINARIES) $(LIBCLEAVE) master/api/cleave.h $$(PAGES)
	$(Q)$(MAKE) --no-print-directory install DESTDIR=$(TREE) > $(OUT)/install.log
	$(Q)touch $@
PUBLIC_SOURCES := $(wildcard tests/seeds/*.c tests/net/*/*.c)
public_program = $(OUT)/$(word 2,$(subst /, ,$(1)))/$(basename $(notdir $(1)))
PUBLIC_PROGRAMS := $(foreach s,$(PUBLIC_SOURCES),$(call public_program,$(s)))
$(foreach s,$(PUBLIC_SOURCES),$(eval $(call public_program,$(s)): $(s)))
public_compile = $(CC) -std=c17 -D_GNU_SOURCE -pthread $(WARN) $(CFLAGS_$(BUILD)) $(CFLAGS_ONCE)
$(PUBLIC_PROGRAMS): $(TREE)/installed
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(public_compile) -MMD -MP -MF $@.d -o $@ $(filter %.c,$^) \
	  -Wl,-rpath,$(TREE)$(PREFIX)/lib $$($(TREE_PKG) --cflags --libs cleave) $(LDFLAGS) -lm

# Programs of longer proofs are read by the compiler here: one that is behind what it calls is found
# before anybody wants the proof.
LATER := $(wildcard tests/fuzz/*.c tests/bench/*.c tests/parity/*.c)
$(LATER:%.c=$(OUT)/%.read): $(OUT)/%.read: %.c $(OUT)/flags
	@mkdir -p $(@D)
	$(Q)$(call compile,$<) -fsyntax-only -MMD -MP -MF $(@:.read=.d) -MT $@
	@touch $@

units: $(UNIT_PROGRAMS) $(PUBLIC_PROGRAMS) $(FAULTS) $(GPU_WORKER) $(DAEMONS) $(OUT)/bench/bench_link $(GPU_PROGRAMS) $(LATER:%.c=$(OUT)/%.read)

test: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all units
	$(Q)tests/run-tests --suite --out $(OUT) $(UNIT_PROGRAMS)

# T: a program, a script or one test in it, by name; see tests/one-test.
t:
	$(Q)MAKE='$(MAKE)' tests/one-test $(OUT) '$(T)' $(UNIT_PROGRAMS)

# What holds for the tree itself: each executable tests/check-* is one check (and runs in make test
# too).
check: deps-test
	$(Q)tests/run-tests --checks --out $(OUT)

demo: deps
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)deploy/demo.sh $(OUT)

# ---- longer proofs -------------------------------------------------------------------------------
FUZZ_SECONDS ?= 60
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))

$(OUT)/fuzz/fuzz_answers: FUZZ_LDFLAGS := -Wl,--wrap=clv_node_help,--wrap=clv_link_send
$(OUT)/fuzz/fuzz_node $(OUT)/fuzz/fuzz_ends: FUZZ_LDFLAGS := -Wl,--wrap=clv_link_send
$(OUT)/fuzz/%: $(OUT)/tests/fuzz/%.o $(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) -fsanitize=fuzzer,address,undefined -fprofile-instr-generate -pthread $(FUZZ_LDFLAGS) -o $@ $< -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS)

fuzzers:
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) BUILD=fuzz CC=$(CLANG) OUT=build/fuzz $(FUZZERS:%=build/fuzz/fuzz/%)

fuzz: deps-test
	$(Q)$(MAKE) --no-print-directory fuzzers
	$(Q)for f in $(FUZZERS); do mkdir -p build/fuzz/found/$$f; echo "== $$f"; \
	  LLVM_PROFILE_FILE=/dev/null LSAN_OPTIONS=suppressions=tests/lsan.supp build/fuzz/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/found/$$f/ build/fuzz/found/$$f tests/fuzz/corpus/$${f#fuzz_} 2>&1 | \
	    grep -E 'ERROR|SUMMARY|number_of_executed_units|average_exec' ; [ $${PIPESTATUS[0]} -eq 0 ] || exit 1; done

# The corpora alone against tests/fuzz/coverage.txt; FUZZ_COVERAGE_ARGS='--lines wire' shows what is
# not reached.
fuzz-coverage: deps-test
	$(Q)tests/install-packages llvm
	$(Q)$(MAKE) --no-print-directory fuzzers
	$(Q)$(PYTHON) tests/fuzz/coverage.py build/fuzz $(FUZZ_COVERAGE_ARGS)

mutate: deps-test
	$(Q)MAKE=$(MAKE) tests/mutate
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) tests/check-breaks --run

sanitize: deps-test
	$(Q)$(MAKE) --no-print-directory BUILD=asan test
	$(Q)$(MAKE) --no-print-directory BUILD=tsan test

# What make gpu-bundle packs, within its bound, and every piece of it in a dry run.
gpu-dry: deps-parity
	$(Q)$(MAKE) --no-print-directory gpu-bundle
	$(Q)$(PYTHON) tests/gpu/dry_bundle.py $(OUT) $(GPU_DRY_ARGS)

gpu-sanitized: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) BUILD=asan gpu-tests
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) BUILD=tsan gpu-tests

$(OUT)/parity/%: $(OUT)/tests/parity/%.o $(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS)

parity: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all $(PUBLIC_PROGRAMS) $(OUT)/parity/stages
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/parity/parity.py $(PARITY_ARGS)

# Hugging Face's tokenizers come from PyPI, into build/tokenizers.
token-golden: deps-parity
	$(Q)$(PYTHON) tests/golden/make_tokens.py
token-parity: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) $(OUT)/parity/print_tokens
	$(Q)$(PYTHON) tests/parity/tokens.py --out $(OUT) $(PARITY_ARGS)

# PyTorch and Hugging Face's transformers come from PyPI, into build/transformers.
hf-golden: deps-parity
	$(Q)$(PYTHON) tests/golden/make_hf.py
peft-parity: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)$(PYTHON) tests/parity/adapters.py --out $(OUT) $(PARITY_ARGS)
hf-parity: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) $(OUT)/parity/hf_step
	$(Q)$(PYTHON) tests/parity/hf.py --out $(OUT) $(PARITY_ARGS)

hf-base: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)$(PYTHON) tests/parity/hf_base.py --out $(OUT) $(PARITY_ARGS)
hf-files: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)$(PYTHON) tests/parity/exchange.py --out $(OUT) $(PARITY_ARGS)
# Documents to a trained model, and the same in PyTorch; SEED_ARGS='--seeds 1'.
seed-000: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)$(PYTHON) tests/seeds/seed000.py --out $(OUT) $(SEED_ARGS)

learns: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/parity/learns.py $(LEARNS_ARGS)

bench: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all benches
	$(Q)STRICT=$(STRICT) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/bench/bench.py $(OUT) $(BENCH_ARGS)

bench-pipeline: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all benches $(OUT)/net/delay_proxy
	$(Q)STRICT=$(STRICT) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/bench/bench_pipeline.py $(OUT) $(BENCH_ARGS)

bench-transformers: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all benches
	$(Q)STRICT=$(STRICT) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/bench/bench_transformers.py $(OUT) $(BENCH_ARGS)

# Random programs of references over a simulated network; REFERENCE_ARGS='--seed 17 --trace' replays
# one.
REFERENCE_RUNS ?= 10000
references:
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) $(OUT)/faults/references
	$(Q)$(OUT)/faults/references $(or $(REFERENCE_ARGS),--runs $(REFERENCE_RUNS))

# Random programs over a master and three workers on a simulated network and clock;
# SIMULATE_ARGS='--seed 17 --trace' replays one step by step.
SIMULATE_RUNS ?= 10000
simulate:
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) $(OUT)/simulate/simulate
	$(Q)$(OUT)/simulate/simulate $(or $(SIMULATE_ARGS),--runs $(SIMULATE_RUNS))

# The same programs over real daemons. PROGRAM_FIRST=17 PROGRAM_RUNS=1 does one again, as far as
# time lets it be the same.
PROGRAM_RUNS ?= 5000
PROGRAM_FIRST ?= 1
programs: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all $(DAEMONS)
	$(Q)CLV_TEST_PROGRAMS=$(PROGRAM_RUNS) CLV_TEST_FIRST=$(PROGRAM_FIRST) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/simulate/daemons/test_daemons.py

# Each seed program and the demo twice, the second time with control messages that are lost, doubled
# and late.
faults: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all $(PUBLIC_PROGRAMS) $(FAULTS)
	$(Q)CLV_TEST_LONG=1 CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/faults/test_faults.py
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/faults/demo.py

SOAK_STEPS ?= 100000
soak: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all $(OUT)/net/api_faults
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/api/api_soak.py $(SOAK_STEPS)

# SOAK_SEED=17 replays a mix.
SOAK_SECONDS ?= 7200
soak-mixed: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all $(foreach p,api_faults api_kept random_programs,$(OUT)/net/$(p))
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/operations/mixed_soak.py $(SOAK_SECONDS) $(SOAK_SEED)

ATTACK_SECONDS ?= 6
NOISE_SECONDS ?= 75
attacks: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/attacks/attack_connections.py $(ATTACK_SECONDS)
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/attacks/attack_noise.py $(NOISE_SECONDS)
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/attacks/attack_memory.py $(ATTACK_SECONDS)
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/attacks/attack_pauses.py
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/attacks/attack_revoke.py $(ATTACK_SECONDS)

API_SCHEDULES ?= 250
SESSION_SCHEDULES ?= 50
# 1: small transformers cut everywhere, packed and padded; 0: at a few places.
EVERY_CUT ?= 1
schedules: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all $(OUT)/net/api_schedule $(GPU_WORKER)
	$(Q)CLV_TEST_SCHEDULES=$(API_SCHEDULES) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/api/test_api_schedule.py
	$(Q)CLV_TEST_SCHEDULES=$(SESSION_SCHEDULES) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/schedules/test_custom_schedules.py
	$(Q)CLV_TEST_ALL=$(EVERY_CUT) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/training/test_packed_sessions.py
	$(Q)CLV_TEST_ALL=$(EVERY_CUT) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/training/test_packed_cuda.py

# LOOK_ARGS='--first 17 --runs 1 --verbose' does one again.
LOOK_RUNS ?= 200
look-proof: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/proof/look.py --runs $(LOOK_RUNS) $(LOOK_ARGS)

BENCHES := $(patsubst tests/bench/%.c,$(OUT)/bench/%,$(wildcard tests/bench/bench_*.c))
benches: $(BENCHES)
$(OUT)/bench/%: $(OUT)/tests/bench/%.o $(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS)

# ---- the table of the proofs ---------------------------------------------------------------------
.PHONY: proof proof-status
proof: deps-parity
	$(Q)MAKE=$(MAKE) PROOF=$(PROOF) PROOF_SCALE=$(PROOF_SCALE) $(PYTHON) tests/proof/proof.py
proof-status:
	$(Q)PROOF_SCALE=$(PROOF_SCALE) $(PYTHON) tests/proof/proof.py --status

# ---- install -------------------------------------------------------------------------------------
BINDIR := $(DESTDIR)$(PREFIX)/bin
LIBDIR := $(DESTDIR)$(PREFIX)/lib
DOCDIR := $(DESTDIR)$(PREFIX)/share/doc/cleave
# Every page and the examples, in the folders that their links name.
PAGES = $(shell find . \( -path ./build -o -path ./.git \) -prune -o -name '*.md' -printf '%P\n')
EXAMPLES = LICENSE deploy/worker.yaml deploy/egress.policy.yaml tests/seeds/example.c $(wildcard kernels/ops.def deploy/sessions/*.yaml \
           deploy/prometheus/*.yaml deploy/grafana/*.json deploy/systemd/*.conf)
install: all
	install -d $(BINDIR) $(DESTDIR)$(PREFIX)/share/cleave/proto/cleave/v1 $(DESTDIR)$(PREFIX)/lib/systemd/system
	install -m 755 $(BINARIES) $(BINDIR)
	install -d $(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/include
	install -m 644 master/api/cleave.h $(DESTDIR)$(PREFIX)/include
	install -m 644 $(OUT)/libcleave.a $(LIBDIR)
	install -m 755 $(OUT)/libcleave.so.0 $(LIBDIR)
	ln -sf libcleave.so.0 $(LIBDIR)/libcleave.so
	$(if $(CUDA_LIBRARY),install -D -m 755 $(CUDA_LIBRARY) $(LIBDIR)/cleave/libcleave_cuda.so)
	$(if $(DESTDIR),,@PATH=$$PATH:/sbin ldconfig 2>/dev/null || true)
	sed -e 's|^prefix=.*|prefix=$(PREFIX)|' $(if $(filter /usr,$(PREFIX)),-e 's| -Wl.*libdir}||') $(OUT)/cleave.pc > $(LIBDIR)/pkgconfig/cleave.pc
	for f in $(PAGES) $(EXAMPLES); do install -D -m 644 $$f $(DOCDIR)/$$f || exit 1; done
	install -m 644 proto/cleave/v1/cleave.proto $(DESTDIR)$(PREFIX)/share/cleave/proto/cleave/v1
	install -m 755 deploy/export_torch.py deploy/random_data.py $(DESTDIR)$(PREFIX)/share/cleave
	install -m 644 deploy/export_traced.py deploy/export_values.py $(DESTDIR)$(PREFIX)/share/cleave
	sed 's|/usr/local/|$(PREFIX)/|' deploy/systemd/cleave-worker.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/cleave-worker.service
	for f in $(SHARED); do install -D -m 644 $(OUT)/share/$$f $(DESTDIR)$(PREFIX)/share/$$f || exit 1; done
uninstall:
	rm -f $(LIBDIR)/cleave/libcleave_cuda.so $(LIBDIR)/libcleave.a $(LIBDIR)/libcleave.so $(LIBDIR)/libcleave.so.0 $(LIBDIR)/pkgconfig/cleave.pc
	rm -f $(DESTDIR)$(PREFIX)/include/cleave.h
	rm -f $(BINDIR)/cleave-master $(BINDIR)/cleave-worker $(DESTDIR)$(PREFIX)/lib/systemd/system/cleave-worker.service
	rm -f $(SHARED:%=$(DESTDIR)$(PREFIX)/share/%)
	rm -rf $(DOCDIR) $(DESTDIR)$(PREFIX)/share/cleave

check-layers:
	$(Q)tests/check-layers
# The table as lines: the storeys, and what folders use, see, link, and must not reach.
print-layers:
	@printf '%s\n' $(foreach s,$(STOREYS),'STOREY $(s) $(APART_$(s))') \
	  $(foreach f,$(FOLDERS) $(PLUGINS) $(PROGRAMS),$(foreach w,IN USES SEES LIBS OUT_OF_REACH,'$(w) $(f) $($(w)_$(f))'))

format:
	$(Q)tests/check-comments --fix > /dev/null || true
	$(Q)clang-format -i $(shell git ls-files '*.c' '*.h')
lint:
	$(Q)tests/check-lint

clean:
	$(Q)rm -rf build

# From the flags above, for editors; a public program includes <cleave.h> as it stands in the tree.
C_FILES = $(sort $(shell git ls-files --cached --others --exclude-standard '*.c'))
compile_commands.json: FORCE
	$(Q)$(MAKE) --no-print-directory -s print-commands | tests/compile-commands > $@.tmp && mv $@.tmp $@
print-commands:
	$(foreach s,$(C_FILES),$(info $(s) $(if $(filter $(s),$(PUBLIC_SOURCES)),$(public_compile) -Imaster/api -c $(s),$(call compile,$(s)))))@:

-include $(shell find $(OUT) -name '*.d' 2>/dev/null)
