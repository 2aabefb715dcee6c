# SPDX-License-Identifier: Apache-2.0
# What a user gets: packages, manuals, the demo, an installed tree.

# ---- packages -----------------------------------------------------------------------------------
# deploy/packages names them. DISTRIBUTION: a system of that table in place of this one's, or none.
export DISTRIBUTION

.PHONY: uninstall
## deps             installs the packages that the build needs
deps:
	$(Q)tests/install-packages build
##+ deps-test        those of the tests as well
deps-test:
	$(Q)tests/install-packages build test
##+ deps-parity      those of the comparisons with PyTorch as well
deps-parity:
	$(Q)tests/install-packages build test parity

# What the programs say of themselves: manual pages and shell completions.
SHARED := man/man1/cleave-master.1 man/man1/cleave-worker.1 man/man5/cleave-session.yaml.5 man/man5/cleave-egress.policy.yaml.5 man/man5/cleave-worker.yaml.5 \
          man/man7/cleave-ops.7 cleave/ops.json \
          bash-completion/completions/cleave-master bash-completion/completions/cleave-worker \
          zsh/site-functions/_cleave-master zsh/site-functions/_cleave-worker
MANUALS := $(SHARED:%=$(OUT)/share/%)
##+ manuals          manual pages and shell completions under build/$(BUILD)/share
manuals: $(MANUALS)
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

## demo             train Fashion-MNIST in U shape over a master and two workers, with mutual TLS
demo: deps
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)deploy/demo.sh $(OUT)

# ---- install -------------------------------------------------------------------------------------
BINDIR := $(DESTDIR)$(PREFIX)/bin
LIBDIR := $(DESTDIR)$(PREFIX)/lib
DOCDIR := $(DESTDIR)$(PREFIX)/share/doc/cleave
# Every page and the examples, in the folders that their links name.
PAGES = $(shell find . \( -path ./build -o -path ./.git \) -prune -o -name '*.md' -printf '%P\n')
EXAMPLES = LICENSE deploy/worker.yaml deploy/egress.policy.yaml $(addprefix tests/seeds/,example.c recovery.c) $(wildcard kernels/ops.def deploy/sessions/*.yaml \
           deploy/prometheus/*.yaml deploy/grafana/*.json deploy/systemd/*.conf deploy/slurm/*.sbatch)
UNITS = $(notdir $(wildcard deploy/systemd/*.service))
## install          to $(DESTDIR)$(PREFIX); `make uninstall` takes it away again
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
	install -m 644 deploy/export_rules.py deploy/export_traced.py deploy/export_values.py deploy/export_joined.py $(DESTDIR)$(PREFIX)/share/cleave
	for f in $(UNITS); do sed 's|/usr/local/|$(PREFIX)/|' deploy/systemd/$$f > $(DESTDIR)$(PREFIX)/lib/systemd/system/$$f || exit 1; done
	for f in $(SHARED); do install -D -m 644 $(OUT)/share/$$f $(DESTDIR)$(PREFIX)/share/$$f || exit 1; done
uninstall:
	rm -f $(LIBDIR)/cleave/libcleave_cuda.so $(LIBDIR)/libcleave.a $(LIBDIR)/libcleave.so $(LIBDIR)/libcleave.so.0 $(LIBDIR)/pkgconfig/cleave.pc
	rm -f $(DESTDIR)$(PREFIX)/include/cleave.h
	rm -f $(BINDIR)/cleave-master $(BINDIR)/cleave-worker $(UNITS:%=$(DESTDIR)$(PREFIX)/lib/systemd/system/%)
	rm -f $(SHARED:%=$(DESTDIR)$(PREFIX)/share/%)
	rm -rf $(DOCDIR) $(DESTDIR)$(PREFIX)/share/cleave
