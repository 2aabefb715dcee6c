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
ifndef CFLAGS_$(BUILD)
$(error BUILD=$(BUILD): there is no such build; use release, debug, asan or tsan)
endif
# -ffp-contract=off: an expression gives the same bits wherever the compiler places it.
CPPFLAGS += -I. -I$(OUT)/gen -D_GNU_SOURCE -DCLV_VERSION='"$(VERSION)"' -DCLV_SANITIZED=$(if $(filter asan tsan,$(BUILD)),1,0)
CFLAGS += -std=gnu17 -fvisibility=hidden -fPIC -pthread -ffp-contract=off $(WARN) $(CFLAGS_$(BUILD))
CFLAGS_kernels/ops := $(if $(filter release,$(BUILD)),-O3)
CFLAGS_kernels/ref := $(if $(filter release,$(BUILD)),-O3)
# -fno-math-errno: sqrtf is an instruction, and -fno-trapping-math: both sides of a `?:` may be
# computed, so that loops with them can be wide; the bits are the same.
CFLAGS_kernels/cpu := $(if $(filter release,$(BUILD)),-O3 -fno-math-errno -fno-trapping-math)
# Except for release, records that were given back are marked: a test sees who uses them still.
CFLAGS_common/net/fair := $(if $(filter release,$(BUILD)),,-DCLV_MARKS_IDLE)
CFLAGS_tests/unit/fair := $(CFLAGS_common/net/fair)
# The simulation tells the sanitizers what they are to know.
CFLAGS_tests/gpu/sim := $(if $(filter asan tsan,$(BUILD)),-fno-sanitize=all -O2,$(if $(filter release,$(BUILD)),-O3))
CFLAGS_master/data := $(if $(filter release,$(BUILD)),-O3)
# Tests run once or twice: to optimise one takes longer than to run it.
CFLAGS_ONCE := $(if $(filter release,$(BUILD)),-O1)
# They are linked by the quicker of the linkers, where it is there.
LDFLAGS_ONCE := $(if $(filter release,$(BUILD)),$(if $(shell command -v ld.gold),-fuse-ld=gold))
LDFLAGS += -pthread $(LDFLAGS_$(BUILD))
LDLIBS += -lm

# ---- sources ------------------------------------------------------------------------------------
src_of = $(wildcard $(1)/*.c)
obj_of = $(if $(filter kernels/ops,$(1)),$(OPS_OBJS),$(patsubst %.c,$(OUT)/%.o,$(call src_of,$(1))))
lib_of = $(OUT)/lib/$(subst /,_,$(1)).a
# The file of an op is compiled twice, with REAL float and with REAL double.
OP_SRCS := $(shell sed -n 's|^OP([0-9]*, *[A-Z0-9_]*, *\([a-z0-9_]*\)).*|kernels/ops/\1.c|p' kernels/ops.def)
OPS_OBJS := $(patsubst %.c,$(OUT)/%.o,$(filter-out $(OP_SRCS),$(wildcard kernels/ops/*.c))) \
            $(foreach bits,f32 f64,$(OP_SRCS:%.c=$(OUT)/%.$(bits).o))
# a folder's link closure, highest layer first
closure = $(filter $(call expand,$(1)),$(HIGHEST_FIRST))
reverse = $(if $(1),$(call reverse,$(wordlist 2,$(words $(1)),$(1))) $(firstword $(1)))
HIGHEST_FIRST := $(call reverse,$(FOLDERS))
expand = $(call behind,$(sort $(1) $(USES_$(1)) $(foreach u,$(USES_$(1)),$(USES_$(u))) $(foreach u,$(USES_$(1)),$(foreach w,$(USES_$(u)),$(USES_$(w))))))
behind = $(1) $(foreach f,$(1),$(BEHIND_$(f)))
libs_for = $(foreach f,$(call closure,$(1)),$(call lib_of,$(f)))
ldlibs_for = $(sort $(foreach f,$(call closure,$(1)),$(LIBS_$(f)))) -lm

include kernels/cuda/cuda.mk

GEN := $(OUT)/gen
PROTOS := cleave/v1/cleave grpc/health/v1/health grpc/reflection/v1alpha/reflection
GEN_OBJS := $(PROTOS:%=$(GEN)/%.pb-c.o) $(GEN)/descriptors.o
GEN_HEADERS := $(PROTOS:%=$(GEN)/%.pb-c.h)

BINARIES := $(OUT)/cleave-master $(OUT)/cleave-worker
LIBCLEAVE := $(OUT)/libcleave.so.0 $(OUT)/libcleave.so $(OUT)/libcleave.a $(OUT)/cleave.pc $(OUT)/cleave-uninstalled.pc

.PHONY: $(shell sed -n 's/^##+* *\([a-z0-9-]*\) .*/\1/p' Makefile */*.mk */*/*.mk) help objects print-layers print-commands FORCE
## all              cleave-master, cleave-worker and libcleave under build/$(BUILD)
all: $(BINARIES) $(LIBCLEAVE) $(CUDA_LIBRARY) manuals

# What the comments over targets say; a user's first.
FIRST := deploy/% tests/tests.mk
HELP = $(filter %.mk Makefile,$(filter $(FIRST),$(MAKEFILE_LIST)) $(filter-out $(FIRST),$(MAKEFILE_LIST)))
## help-all         every other target: proofs, single checks, packages
help:
	@sed -n 's/^## /make /p' $(HELP); echo 'variables: BUILD=release|debug|asan|tsan CC=gcc|clang CUDA=auto|0|1 V=1'
help-all:
	@sed -n 's/^##+ /make /p' $(HELP)

# ---- rules --------------------------------------------------------------------------------------
$(OUT)/flags: FORCE
	@mkdir -p $(@D); echo '$(CC) $(CPPFLAGS) $(filter-out -Werror,$(CFLAGS))' > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
FORCE:

$(GEN)/%.pb-c.c $(GEN)/%.pb-c.h &: proto/%.proto
	$(call say,PROTO,$<)
	@mkdir -p $(GEN)
	$(Q)protoc-c -Iproto --c_out=$(GEN) $*.proto
$(GEN)/descriptors.c: $(PROTOS:%=proto/%.proto)
	@mkdir -p $(GEN)
	$(Q)protoc -Iproto --descriptor_set_out=$(GEN)/cleave.desc $(PROTOS:%=%.proto)
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
	@mkdir -p $(@D); sed -n -e 's/^CLV_CUDA_OP(\([a-z0-9_]*\)).*/CUDA_OP(\1)/p' -e 's/^POINTWISE(\([a-z0-9_]*\),.*/CUDA_OP(\1)/p' \
	  kernels/cuda/*.c kernels/cuda/pointwise.def > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(OUT)/kernels/cuda/backend.o $(OUT)/master/ops.o: $(GEN)/cuda_ops.def

# The launchers that its kernels call, which are compiled for a device.
$(GEN)/cuda_launches.def: $(call lib_of,kernels/cuda)
	@mkdir -p $(@D); nm $< | awk '$$1 == "U" && $$2 ~ /^clv_gpu_/ { called[$$2] } NF == 3 { here[$$3] } \
	  END { for (name in called) if (!(name in here)) print "LAUNCH(" name ")" }' | sort > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(OUT)/kernels/cuda/dryrun/launches.o: $(GEN)/cuda_launches.def

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

# The library of the C API: only what cleave.h declares is visible. The archive is one object whose
# other symbols were made local, so that it goes with any program.
API_LIBS := $(call libs_for,master/api)
api_members = -Wl,--whole-archive $(foreach f,$(filter master/api/%,$(BEHIND_master/api)),$(call lib_of,$(f))) -Wl,--no-whole-archive \
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

##+ check-layers     includes against the layer table
include deploy/deploy.mk deploy/python/python.mk tests/tests.mk tests/gpu.mk tests/proofs.mk

check-layers:
	$(Q)tests/check-layers
# The table as lines: the storeys, and what folders use, see, link, and must not reach.
print-layers:
	@printf '%s\n' $(foreach s,$(STOREYS),'STOREY $(s) $(APART_$(s))') \
	  $(foreach f,$(FOLDERS) $(PLUGINS) $(PROGRAMS),$(foreach w,IN USES SEES LIBS OUT_OF_REACH,'$(w) $(f) $($(w)_$(f))'))

## format           clang-format, and comments broken at 100 columns
format:
	$(Q)tests/check-comments --fix > /dev/null || true
	$(Q)clang-format -i $(shell git ls-files '*.c' '*.h')
lint:
	$(Q)tests/check-lint
##+ report           lengths of functions, files, sentences and pages; fails nothing
report:
	$(Q)tests/check-lengths --report
	$(Q)tests/check-prose --report

## clean            deletes build/
clean:
	$(Q)rm -rf build

# From the flags above, for editors; a public program includes <cleave.h> as it stands in the tree.
C_FILES = $(sort $(shell git ls-files --cached --others --exclude-standard '*.c'))
##+ report-look      a report in a headless browser (chromium): 400 and 1,400 pixels, light, dark,
#printed
report-look: $(BINARIES)
	$(Q)$(PYTHON) tests/e2e/report_look.py --out $(OUT)
##+ compile_commands.json how each C file is compiled, for editors
compile_commands.json: FORCE
	$(Q)$(MAKE) --no-print-directory -s print-commands | tests/compile-commands > $@.tmp && mv $@.tmp $@
print-commands:
	$(foreach s,$(C_FILES),$(info $(s) $(if $(filter $(s),$(PUBLIC_SOURCES) deploy/python/shim.c),$(public_compile) -Imaster/api -c $(s),$(call compile,$(s)))))@:

# What needs no file to be up to date does not ask for what files are made of.
ifneq ($(filter-out help help-all print-layers print-commands report clean,$(or $(MAKECMDGOALS),all)),)
-include $(shell find $(OUT) -name '*.d' 2>/dev/null)
endif
