# SPDX-License-Identifier: Apache-2.0
# Proofs that take too long for `make test`.

.PHONY: fuzzers benches
# ---- longer proofs -------------------------------------------------------------------------------
FUZZ_SECONDS ?= 60
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))

$(OUT)/fuzz/fuzz_answers: FUZZ_LDFLAGS := -Wl,--wrap=clv_node_run_until,--wrap=clv_link_send
$(OUT)/fuzz/fuzz_node $(OUT)/fuzz/fuzz_ends: FUZZ_LDFLAGS := -Wl,--wrap=clv_link_send
$(OUT)/fuzz/%: $(OUT)/tests/fuzz/%.o $(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) -fsanitize=fuzzer,address,undefined -fprofile-instr-generate -pthread $(FUZZ_LDFLAGS) -o $@ $< -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS)

fuzzers:
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) BUILD=fuzz CC=$(CLANG) OUT=build/fuzz $(FUZZERS:%=build/fuzz/fuzz/%)

##+ fuzz             every fuzz target for FUZZ_SECONDS (60) under ASan and UBSan
fuzz: deps-test
	$(Q)$(MAKE) --no-print-directory fuzzers
	$(Q)for f in $(FUZZERS); do mkdir -p build/fuzz/found/$$f; echo "== $$f"; \
	  LLVM_PROFILE_FILE=/dev/null LSAN_OPTIONS=suppressions=tests/lsan.supp build/fuzz/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/found/$$f/ build/fuzz/found/$$f tests/fuzz/corpus/$${f#fuzz_} 2>&1 | \
	    grep -E 'ERROR|SUMMARY|number_of_executed_units|average_exec' ; [ $${PIPESTATUS[0]} -eq 0 ] || exit 1; done

# The corpora alone against tests/fuzz/coverage.txt; FUZZ_COVERAGE_ARGS='--lines wire' shows what is
# not reached.
##+ fuzz-coverage    lines of each parser that the corpora reach, against floors
fuzz-coverage: deps-test
	$(Q)tests/install-packages coverage
	$(Q)$(MAKE) --no-print-directory fuzzers
	$(Q)$(PYTHON) tests/fuzz/coverage.py build/fuzz $(FUZZ_COVERAGE_ARGS)

# FUZZ_READERS='table cells' runs some. A run that was ended early is continued by the next.
FUZZ_RUNS ?= 10000000
##+ fuzz-readers     FUZZ_RUNS (10,000,000) inputs for each reader of data
fuzz-readers: deps-test
	$(Q)tests/install-packages coverage
	$(Q)$(MAKE) --no-print-directory fuzzers
	$(Q)$(PYTHON) tests/fuzz/readers.py build/fuzz $(FUZZ_RUNS) $(FUZZ_READERS)

##+ mutate           switch off each guard and break each state machine: a test fails
mutate: deps-test
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) tests/check-breaks --run

##+ long             the suite with all that `make test` leaves out of its programs
long: deps-test
	$(Q)CLV_TEST_LONG=1 CLV_TEST_SIMULATED_S=400 $(MAKE) --no-print-directory test

##+ sanitize         the suite under address/undefined and thread sanitizers
sanitize: deps-test
	$(Q)CLV_TEST_SLOW=3 $(MAKE) --no-print-directory BUILD=asan test
	$(Q)CLV_TEST_SLOW=6 $(MAKE) --no-print-directory BUILD=tsan test

##+ test-trixie      demo and suite of HEAD in a Debian 13 root (mmdebstrap; as root): the counts
test-trixie:
	$(Q)tests/install-packages trixie
	$(Q)tests/trixie

# What make gpu-bundle packs, within its bound, and every piece of it in a dry run.
##+ gpu-dry          the bundle for a GPU, each piece on the simulated device beside PyTorch
gpu-dry: deps-parity
	$(Q)$(MAKE) --no-print-directory gpu-bundle
	$(Q)$(PYTHON) tests/gpu/dry_bundle.py $(OUT) $(GPU_DRY_ARGS)

$(OUT)/parity/%: $(OUT)/tests/parity/%.o $(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS)

##+ parity           compare with PyTorch, step by step (installs python3-torch)
parity: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all $(PUBLIC_PROGRAMS) $(OUT)/parity/stages
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/parity/parity.py $(PARITY_ARGS)

##+ exports          networks that people publish, exported as they are written, beside PyTorch
exports: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all $(OUT)/parity/exported
	$(Q)$(PYTHON) tests/parity/exports.py --out $(OUT) $(PARITY_ARGS)

# Hugging Face's tokenizers come from PyPI, into build/tokenizers.
token-golden: deps-parity
	$(Q)$(PYTHON) tests/golden/make_tokens.py
##+ token-parity     real texts through our tokenizers and the library of Hugging Face
token-parity: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) $(OUT)/parity/print_tokens
	$(Q)$(PYTHON) tests/parity/tokens.py --out $(OUT) $(PARITY_ARGS)

# PyTorch and Hugging Face's transformers come from PyPI, into build/transformers.
hf-golden: deps-parity
	$(Q)$(PYTHON) tests/golden/make_hf.py
##+ peft-parity      adapters of sessions beside those of peft: outputs, gradients, files both ways
peft-parity: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)$(PYTHON) tests/parity/adapters.py --out $(OUT) $(PARITY_ARGS)
HF_CONFIGS ?= 40
##+ hf-parity        HF_CONFIGS (40) models of each family beside transformers: outputs, gradients,
#AdamW, cut and packed
hf-parity: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) $(OUT)/parity/hf_step $(OUT)/parity/hf_ways
	$(Q)$(PYTHON) tests/parity/hf.py --out $(OUT) --configs $(HF_CONFIGS) $(PARITY_ARGS)

##+ hf-keys          each key of the newest files of transformers and peft: same outputs, same
#tokens or refused
hf-keys: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) $(OUT)/parity/hf_step $(OUT)/parity/hf_keys $(OUT)/parity/print_tokens
	$(Q)$(PYTHON) tests/parity/hf_keys.py --out $(OUT) $(PARITY_ARGS)

##+ hf-base          BERT and LayoutLM of base size over a worker, beside transformers
hf-base: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)$(PYTHON) tests/parity/hf_base.py --out $(OUT) $(PARITY_ARGS)
##+ hf-files         what sessions export, in transformers and peft, and the reverse: same outputs
hf-files: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)$(PYTHON) tests/parity/exchange.py --out $(OUT) $(PARITY_ARGS)
# Documents to a trained model, and the same in PyTorch; SEED_ARGS='--seeds 1'.
##+ seed-000         documents, a LayoutLM over two workers, and the same in PyTorch
seed-000: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)$(PYTHON) tests/seeds/seed000.py --out $(OUT) $(SEED_ARGS)

##+ learns           ResNet18 on Fashion-MNIST through pipelines, and in PyTorch
learns: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/parity/learns.py $(LEARNS_ARGS)

## bench            speed as ratios against peers in the same run; STRICT=1 fails on a miss
bench: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all benches
	$(Q)STRICT=$(STRICT) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/bench/bench.py $(OUT) $(BENCH_ARGS)

##+ bench-pipeline   ResNet50 split and schedules, the same way (BENCH_ARGS=--quick)
bench-pipeline: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all benches $(OUT)/net/delay_proxy
	$(Q)STRICT=$(STRICT) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/bench/bench_pipeline.py $(OUT) $(BENCH_ARGS)

##+ bench-transformers BERT, GPT-2, Qwen2 and LayoutLM against PyTorch
bench-transformers: deps-parity
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all benches
	$(Q)STRICT=$(STRICT) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/bench/bench_transformers.py $(OUT) $(BENCH_ARGS)

# Random programs of references over a simulated network; REFERENCE_ARGS='--seed 17 --trace' replays
# one.
REFERENCE_RUNS ?= 10000
##+ references       10,000 programs of references over a network that loses and reorders
references:
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) $(OUT)/faults/references
	$(Q)$(OUT)/faults/references $(or $(REFERENCE_ARGS),--runs $(REFERENCE_RUNS))

# Random programs over a master and three workers on a simulated network and clock;
# SIMULATE_ARGS='--seed 17 --trace' replays one step by step.
SIMULATE_RUNS ?= 10000
##+ simulate         10,000 programs over a simulated network: delays, cut lanes, dead workers
simulate:
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) $(OUT)/simulate/simulate
	$(Q)$(OUT)/simulate/simulate $(or $(SIMULATE_ARGS),--runs $(SIMULATE_RUNS))

# The same programs over real daemons. PROGRAM_FIRST=17 PROGRAM_RUNS=1 does one again, as far as
# time lets it be the same.
PROGRAM_RUNS ?= 5000
PROGRAM_FIRST ?= 1
##+ programs         5,000 programs over real daemons, 1,250 while a worker dies and returns
programs: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all $(DAEMONS)
	$(Q)CLV_TEST_LONG=1 CLV_TEST_PROGRAMS=$(PROGRAM_RUNS) CLV_TEST_FIRST=$(PROGRAM_FIRST) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/simulate/daemons/test_daemons.py

# Each seed program and the demo twice, the second time with control messages that are lost, doubled
# and late.
##+ faults           the seeds and the demo while control messages are lost: the same bytes
faults: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all $(PUBLIC_PROGRAMS) $(FAULTS)
	$(Q)CLV_TEST_LONG=1 CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/faults/test_faults.py
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/faults/demo.py

SOAK_STEPS ?= 100000
##+ soak             100,000 steps of a program on the C API: what grows on either side
soak: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all $(OUT)/net/api_faults
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/api/api_soak.py $(SOAK_STEPS)

# SOAK_SEED=17 replays a mix.
SOAK_SECONDS ?= 1800
##+ soak-mixed       SOAK_SECONDS (1800) of sessions of all kinds on two workers: what grows
soak-mixed: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all $(foreach p,api_faults api_kept random_programs,$(OUT)/net/$(p))
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/operations/mixed_soak.py $(SOAK_SECONDS) $(SOAK_SEED)

LARGE_TABLE_GB ?= 20
##+ large-table      train on a table of LARGE_TABLE_GB (20) with 1 GiB of memory
large-table: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/operations/large_table.py $(LARGE_TABLE_GB) $(LARGE_TABLE_ARGS)

# KILL_SEED=17 replays the kills, but not their moments.
KILLS ?= 1000
##+ soak-kill        KILLS (1000) of masters and workers of five networks: the same bits, and how
#long a recovery takes
soak-kill: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/operations/kill_soak.py $(KILLS) $(KILL_SEED)

# RECUT_SEED=17 draws other pairs.
RECUT_PAIRS ?= 20
RECUT_SEED ?= 1
##+ recut            RECUT_PAIRS (20) random pairs of cuts of three networks: the same bits
recut: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)CLV_TEST_PAIRS=$(RECUT_PAIRS) CLV_TEST_SEED=$(RECUT_SEED) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/training/test_recut.py random_pairs_of_cuts_change_no_bit master_holds_16_mib_of_what_moves

##+ model            all states of small models of lanes and of runs, and mistakes on purpose
model:
	$(Q)$(MAKE) --no-print-directory $(OUT)/model/model
	$(Q)$(OUT)/model/model --full $(MODEL_ARGS)

# WALK_ARGS='--points checkpoint' walks some of the points.
##+ kill-walk        kill, stop or fail each process at each failpoint, also with a spare: same bits
kill-walk: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all $(FAILPOINTS)
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/operations/kill_walk.py $(WALK_ARGS)

# OUTAGE_ARGS='nat' does one of its cases.
RESETS ?= 1000
##+ outages          dropped packets, a NAT that forgets, another address, RESETS (1000): same bits
outages: deps-test
	$(Q)tests/install-packages outages
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/operations/outages.py --resets $(RESETS) $(OUTAGE_ARGS)

COST_MIB ?= 1024
##+ checkpoint-cost  the share of a training's time that checkpoints of COST_MIB (1024) take
checkpoint-cost: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/operations/checkpoint_cost.py $(COST_MIB)

# KILL_SEED=17 replays the kills, but not their moments.
WRITE_KILLS ?= 30
##+ kill-writes      WRITE_KILLS (30) while a checkpoint is being written: the same bits
kill-writes: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/operations/kill_writes.py $(WRITE_KILLS) $(KILL_SEED)

ATTACK_SECONDS ?= 6
NOISE_SECONDS ?= 75
##+ attacks          floods beside a training run: its bits, its rate, the log; pauses
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
##+ schedules        2,000 schedules, hundreds through session files; cut transformers
schedules: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all $(OUT)/net/api_schedule $(GPU_WORKER)
	$(Q)CLV_TEST_SCHEDULES=$(API_SCHEDULES) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/api/test_api_schedule.py
	$(Q)CLV_TEST_SCHEDULES=$(SESSION_SCHEDULES) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/schedules/test_custom_schedules.py
	$(Q)CLV_TEST_ALL=$(EVERY_CUT) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/training/test_packed_sessions.py
	$(Q)CLV_TEST_ALL=$(EVERY_CUT) CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/net/training/test_packed_cuda.py

# LOOK_ARGS='--first 17 --runs 1 --verbose' does one again.
LOOK_RUNS ?= 200
##+ look-proof       200 random fronts and heads: nothing called mixed is read above the limits
look-proof: deps-test
	$(Q)$(MAKE) --no-print-directory -j$(shell nproc) all
	$(Q)CLEAVE_TEST_BIN=$(abspath $(OUT)) $(PYTHON) tests/proof/look.py --runs $(LOOK_RUNS) $(LOOK_ARGS)

BENCHES := $(patsubst tests/bench/%.c,$(OUT)/bench/%,$(wildcard tests/bench/bench_*.c))
benches: $(BENCHES)
$(OUT)/bench/bench_choices: BENCH_LDFLAGS := -Wl,--wrap=clv_cpu_choose
$(OUT)/bench/%: $(OUT)/tests/bench/%.o $(ALL_LIBS)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $(BENCH_LDFLAGS) -o $@ $< -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(ALL_LDLIBS)

# ---- the table of the proofs ---------------------------------------------------------------------
## proof            every proof whose row in tests/PROOFS.md is missing or stale; PROOF=name
proof:
	$(Q)PROOF=$(PROOF) PROOF_SCALE=$(PROOF_SCALE) $(PYTHON) tests/proof/proof.py --names
	$(Q)$(MAKE) --no-print-directory deps-parity
	$(Q)MAKE=$(MAKE) PROOF=$(PROOF) PROOF_SCALE=$(PROOF_SCALE) $(PYTHON) tests/proof/proof.py
##+ proof-status     that table, with what is stale
proof-status:
	$(Q)PROOF_SCALE=$(PROOF_SCALE) $(PYTHON) tests/proof/proof.py --status

# ---- the table of choices, which no proof needs --------------------------------------------------
##+ bench-choices    times the kernels whose choice depends on speed, writes kernels/cpu/choices.def
bench-choices:
	$(Q)$(MAKE) --no-print-directory $(OUT)/bench/bench_choices
	$(Q)MAKE='$(MAKE)' $(PYTHON) tests/bench/choices.py $(OUT) $(BENCH_ARGS)
