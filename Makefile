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

.PHONY: help build package extension page-script deb test-deb run test evidence figures bench check install uninstall deps test-deps

help:
	@echo 'make build     target/release/fairweir, with the commands for developers (figures, compare, evidence)'
	@echo 'make package   target/package/release/fairweir, as it is installed'
	@echo 'make extension target/extension/: the browser extension for Chromium (zip) and Firefox (xpi)'
	@echo 'make run       play the main job on the emulated home: weights that only the receiver knows'
	@echo 'make test      every test, under half an hour on 2 cores (root: namespaces, BPF)'
	@echo 'make check     the fast part: format, lints, architecture, pure tests'
	@echo 'make evidence  play every scenario and write the tables and pictures of docs/ anew'
	@echo 'make figures   play the figures of the papers and of the default control in virtual time and write their tables anew'
	@echo 'make bench     print the benchmark tables'
	@echo 'make deb       target/fairweir_VERSION_ARCHITECTURE.deb, made of that'
	@echo 'make install   binary, systemd units, example configurations, man pages and completions'
	@echo 'make uninstall stop the daemons and remove all that; PURGE=1: also configuration and state'

deps:
	@./dist/install-deps

test-deps:
	@WITH_TESTS=1 ./dist/install-deps

build: deps
	cargo build --release --locked -p fairweir --features evidence

run: build
	@mkdir -p evidence/demo
	$(SUDO) $(FAIRWEIR) lab run scenarios/demo.toml --control none --control crab --control fairweir --control wfq --out evidence/demo
	@echo; echo 'The picture: evidence/demo/. Next: sudo $(FAIRWEIR) doctor; see README.md.'

check: deps
	cargo xtask tidy
	cargo test --locked -p fairweir-core -p fairweir-scenario -p fairweir-sim

# Incremental compilation splits a crate into many more units, which takes longer if all is compiled once.
test: export CARGO_INCREMENTAL ?= 0
test: test-deps
	cargo xtask tidy
	cargo test --locked --workspace --features fairweir/evidence --no-fail-fast

evidence: build
	$(SUDO) $(FAIRWEIR) evidence

figures: build
	$(FAIRWEIR) figures crab --write-docs docs/papers/crab.md
	$(FAIRWEIR) figures rbm --write-docs docs/papers/rbm.md
	$(FAIRWEIR) figures bcpqp --seed 1..3 --write-docs docs/papers/bcpqp.md
	$(FAIRWEIR) figures fs --seed 1..10 --write-docs docs/papers/free-and-stunts.md
	$(FAIRWEIR) figures myob --seed 1 --write-docs docs/papers/myob.md
	$(FAIRWEIR) figures control --write-docs docs/control.md

bench: build
	$(SUDO) cargo bench --locked --workspace --bench fair --bench police --bench link --bench classifier --bench tick --bench connections --bench daemon --bench htb --bench tcp --bench engine

# The binary that is installed, without the commands for developers.
package: deps
	cargo build --release --locked -p fairweir --target-dir target/package
	@# cargo leaves the time alone when nothing had to be built; dist/install compares it.
	@touch $(PACKAGED)

# Only for those who change page.ts: the compiled script is in the repository.
page-script:
	./dist/page-script

extension:
	@WITH_EXTENSION=1 ./dist/install-deps
	@./dist/extension

deb: package
	@FAIRWEIR='$(PACKAGED)' ./dist/make-deb

# Needs root, debootstrap, lintian and a Debian mirror.
test-deb:
	$(SUDO) ./dist/test-deb

install:
	@FAIRWEIR='$(PACKAGED)' DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' ./dist/install

uninstall:
	@DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' PURGE='$(PURGE)' ./dist/uninstall
