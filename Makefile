# The few commands that a person types. `make run` and `make test` install what they need.

SHELL := /bin/bash
FAIRWEIR := target/release/fairweir
PACKAGED := target/package/release/fairweir
# Namespaces, BPF and tc need root; everything else runs as you.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo -E env "PATH=$$PATH")
export CARGO_TERM_COLOR ?= auto
ifneq ($(SUDO),)
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER := sudo -E
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER := sudo -E
endif

PREFIX ?= /usr/local
DESTDIR ?=
# make uninstall PURGE=1 removes configuration and state too.
PURGE ?=

.PHONY: help build package extension page-script sbom deny deb exposure test-deb tarball openwrt test-tarball test-kernel run chain test test-long evidence figures bench verifier check install uninstall deps test-deps fuzz

help:
	@echo 'make build     target/release/fairweir, with the commands for developers (figures, compare, evidence)'
	@echo 'make package   target/package/release/fairweir, as it is installed'
	@echo 'make extension target/extension/: the browser extension for Chromium (zip) and Firefox (xpi)'
	@echo 'make run       play the main job on the emulated home: weights that only the receiver knows'
	@echo 'make chain     play a household whose plan is divided by agreement of its host, router and ISP'
	@echo 'make test      every test but the long ones (root: namespaces, BPF)'
	@echo 'make test-long the claims that take hours: slow repeats, and measurements that print tables'
	@echo 'make check     the fast part: format, lints, architecture, licences, pure tests'
	@echo 'make fuzz      TARGET=dns SECONDS=600: look for inputs that break a parser; without TARGET a list'
	@echo 'make evidence  play every scenario and write the tables and pictures of docs/ anew'
	@echo 'make figures   play the figures of the papers and of the default control in virtual time and write their tables anew'
	@echo 'make bench     print the benchmark tables'
	@echo 'make verifier  load every BPF program and write what it costs the kernel to docs/results/verifier.md'
	@echo 'make deb       target/fairweir_VERSION_ARCHITECTURE.deb, made of that'
	@echo 'make tarball   target/fairweir-VERSION-linux-ARCHITECTURE.tar.gz, with a binary that needs no library'
	@echo 'make openwrt   target/fairweir_VERSION_ARCHITECTURE.ipk: a static binary of at most 8 MiB for a router'
	@echo 'make sbom      target/sbom/: the works in the binary as CycloneDX, and their licences'
	@echo 'make install   binary, systemd units, example configurations, man pages and completions'
	@echo 'make uninstall stop the daemons and remove all that; PURGE=1: also configuration and state'

deps:
	@./dist/install-deps

test-deps:
	@./dist/unchanged note
	@WITH_TESTS=1 ./dist/install-deps

build: deps
	cargo build --release --locked -p fairweir --features evidence

run:
	@./dist/play

chain:
	@./dist/play chain

check: deps deny
	cargo xtask tidy
	cargo test --locked -p fairweir-core -p fairweir-reference -p fairweir-scenario -p fairweir-sim -p fairweir-evidence

# Coverage-guided; see fuzz/run and docs/develop/fuzzing.md.
fuzz:
	@WITH_FUZZ=1 ./dist/install-deps
	@./fuzz/run $(TARGET) $(SECONDS)

# Incremental compilation splits crates into many more units, so that compiling everything once takes longer.
test: export CARGO_INCREMENTAL ?= 0
# Clippy compiles the tests, so that everything is compiled only once: a separate `cargo clippy` would check the
# dependencies and the workspace again. Lints are errors, also in benchmarks, which are compiled but not run.
test: export RUSTC_WORKSPACE_WRAPPER := clippy-driver
test: export CLIPPY_ARGS := -Dwarnings
# A panic reports its location even without debug information.
test: export CARGO_PROFILE_DEV_DEBUG := false
# Tests mostly wait: 2 more than cores. Those that are judged or keep a core busy take turns (fairweir_testing::share).
test: export RUST_TEST_THREADS ?= $(shell echo $$(($$(nproc) + 2)))
test: test-deps
	cargo xtask tidy no-lints
	cargo $(TESTS) --all-targets --no-run
	$(call judged,)
	@./dist/unchanged check

# The tests that take too long for `test`: hours. They run one after the other, and use a release build where
# FAIRWEIR_BINARY is read, because some of them check its cost.
test-long: export CARGO_INCREMENTAL ?= 0
test-long: export FAIRWEIR_BINARY ?= $(CURDIR)/$(FAIRWEIR)
test-long: test-deps build
	$(call judged,-- --ignored --nocapture --test-threads 1)

# Runs the tests, then repeats those for which the machine was too busy beside the others. Ends with the table of
# claims about real packets, even if tests failed.
TESTS := test --locked --workspace --features fairweir/evidence --no-fail-fast
define judged
mkdir -p target && : > target/judge.jsonl
FAIRWEIR_PASS=1 FAIRWEIR_JUDGE='$(CURDIR)/target/judge.jsonl' cargo $(TESTS) $(1); \
	tests=$$?; cargo xtask judge again $(TESTS) && exit $$tests
endef

evidence: build
	$(SUDO) $(FAIRWEIR) evidence

figures: build
	$(FAIRWEIR) figures crab --write-docs docs/research/papers/crab.md
	$(FAIRWEIR) figures rbm --seed 1..40 --write-docs docs/research/papers/rbm.md
	$(FAIRWEIR) figures bcpqp --seed 1..5 --write-docs docs/research/papers/bcpqp.md
	$(FAIRWEIR) figures fs --seed 1..10 --write-docs docs/research/papers/free-and-stunts.md
	$(FAIRWEIR) figures myob --seed 1..10 --write-docs docs/research/papers/myob.md
	$(FAIRWEIR) figures control --write-docs docs/control.md

bench: build
	$(SUDO) cargo bench --locked --workspace --bench fair --bench market --bench police --bench link --bench classifier --bench sites --bench router --bench tick --bench connections --bench sender --bench daemon --bench htb --bench tcp --bench engine
	cargo test --release --locked -p fairweir-market --lib -- --ignored --nocapture how_long

# The numbers depend on kernel and clang: the file names both.
verifier: deps
	FAIRWEIR_RECORD=1 FAIRWEIR_STRICT=1 cargo test --locked -p fairweir-linux --lib programs_cost

# The components of the installed binary: target/sbom/.
sbom:
	@cargo xtask sbom target/sbom

# Licences, sources and banned crates (deny.toml); known vulnerabilities if their database can be fetched.
deny:
	@WITH_DENY=1 ./dist/install-deps
	cargo deny --locked --all-features check licenses sources
	cargo deny --locked check bans
	@if cargo deny fetch db >/dev/null 2>&1; then cargo deny --locked check --disable-fetch advisories; \
	else echo 'deny: advisories NOT CHECKED: the database of RustSec cannot be fetched' >&2; fi

# The binary for installation, without the commands for developers.
package: deps
	cargo build --release --locked -p fairweir --target-dir target/package
	@# cargo leaves the time alone when nothing had to be built; dist/install compares it.
	@touch $(PACKAGED)

# Only needed after changes to page.ts: the compiled script is in the repository.
page-script:
	./dist/page-script

extension:
	@WITH_EXTENSION=1 ./dist/install-deps
	@./dist/extension

deb: package sbom
	@FAIRWEIR='$(PACKAGED)' ./dist/make-deb

# systemd's rating of the units' privileges, from 0 (no privilege) to 10.
exposure:
	@for unit in dist/*.service; do printf '%s  ' "$$unit"; \
	systemd-analyze security --offline=true --no-pager "$$PWD/$$unit" | sed -n 's/.* Overall exposure level for .*: \([0-9.]*\) .*/\1/p'; done

# Needs root, debootstrap, lintian and a Debian mirror.
test-deb:
	$(SUDO) ./dist/test-deb

# Libraries are linked from the archives in Debian's libelf-dev and zlib1g-dev. With PROFILE=dev the build takes
# a few minutes.
PROFILE ?= release
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
STATIC = target/$(HOST)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/fairweir
tarball: deps
	@cargo xtask sbom target/sbom/static static
	RUSTFLAGS='-C target-feature=+crt-static' LIBBPF_SYS_LIBRARY_PATH="$$(dirname "$$(cc -print-file-name=libelf.a)")" \
		cargo build --profile $(PROFILE) --locked -p fairweir --features static --target $(HOST)
	@touch $(STATIC)
	@FAIRWEIR='$(STATIC)' SBOM=target/sbom/static ./dist/make-tarball

# Static and small: without lab, market and page. For another architecture set HOST to its Rust target, and
# ARCHITECTURE to OpenWrt's name for it.
SMALL = target/$(HOST)/openwrt/fairweir
openwrt: deps
	RUSTFLAGS='-C target-feature=+crt-static -C force-unwind-tables=no' \
	LIBBPF_SYS_LIBRARY_PATH="$$(dirname "$$(cc -print-file-name=libelf.a)")" \
		cargo build --profile openwrt --locked -p fairweir --no-default-features --features proxy,static,top --target $(HOST)
	@FAIRWEIR='$(SMALL)' ./dist/openwrt/make-ipk

# Needs root.
test-tarball:
	$(SUDO) ./dist/test-tarball

# Needs qemu-system-x86, busybox-static, kmod and a Debian mirror. ACCEL=kvm is faster where /dev/kvm works.
test-kernel:
	./dist/test-kernel

install:
	@FAIRWEIR='$(PACKAGED)' DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' ./dist/install

uninstall:
	@DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' PURGE='$(PURGE)' ./dist/uninstall
