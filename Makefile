# FluxForge's front door. `make help` lists the targets; each first makes sure that .venv matches its lock.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# Some shells export NAME (the machine's, under WSL): only the one on make's own command line is meant.
ifeq ($(origin NAME),environment)
NAME :=
endif

SET ?= general-test

# What each target takes, given as NAME=..., and how a job gets it. ARGS is passed on as it is.
JOBS := opd eval measure record plan play report bench data audit
TAKES_opd := NAME SEED DATA SMOKE RESUME WANDB TRACKER ARGS
TAKES_eval := NAME SEED DATA SMOKE RESUME TRACKER BASE ARGS
TAKES_measure := NAME SEED DATA SMOKE WANDB TRACKER ARGS
TAKES_record := NAME SEED DATA SMOKE RESUME BASE ARGS
TAKES_plan := SMOKE TRACKER CLUSTER BASE ARGS
TAKES_play := SEED DATA ARGS
TAKES_report := NAME ARGS
TAKES_bench := ARGS
TAKES_data := SET SEED DATA ARGS
TAKES_audit := SET DATA ARGS
TAKES_test := ARGS
TAKES_lock := ARGS
TARGETS := help setup env $(JOBS) test lint format lock

FLAG_NAME = $(if $(NAME),--name "$(NAME)")
FLAG_SEED = $(if $(SEED),--seed "$(SEED)")
FLAG_DATA = $(if $(DATA),--data "$(DATA)")
FLAG_SMOKE = $(if $(filter-out 0,$(SMOKE)),--smoke)
FLAG_RESUME = $(if $(filter-out 0,$(RESUME)),--resume)
FLAG_WANDB = $(if $(WANDB),--wandb "$(WANDB)")
FLAG_SET = $(if $(SET),--set "$(SET)")
FLAG_TRACKER = $(if $(TRACKER),--tracker "$(TRACKER)")
FLAG_BASE = $(if $(BASE),--base "$(BASE)")
FLAG_CLUSTER = $(if $(CLUSTER),--cluster "$(CLUSTER)")
FLAG_ARGS = $(ARGS)
FLAGS = $(foreach variable,$(TAKES_$@),$(FLAG_$(variable)))

# A variable on make's command line that no target of the call takes is refused. One of the environment may be there
# for something else: it is used where it is taken, and elsewhere left alone.
GIVEN := $(foreach variable,$(.VARIABLES),$(if $(filter command,$(origin $(variable))),$(variable)))
UNTAKEN := $(filter-out LOCK PYTHON SHELL MAKE% -% $(foreach goal,$(MAKECMDGOALS),$(TAKES_$(goal))),$(GIVEN))
ifneq ($(and $(filter $(TARGETS),$(MAKECMDGOALS)),$(UNTAKEN)),)
$(error make $(MAKECMDGOALS) does not take $(firstword $(UNTAKEN)); it takes: $(or $(strip $(foreach goal,$(MAKECMDGOALS),$(TAKES_$(goal)))),nothing). See: make help)
endif

.PHONY: $(TARGETS)

help: ## list the targets and what they take
	@echo "usage: make TARGET [VARIABLE=value ...]"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18
	@echo
	@echo "NAME=run  SET=set  SEED=n  DATA=folder  SMOKE=1  RESUME=1  WANDB=offline  TRACKER=model  BASE=model  CLUSTER=name  ARGS=\"--key value\""
	@echo "where they are taken:"
	@printf '  %-16s%s\n' $(foreach target,$(JOBS) test lock,"make $(target)" "$(TAKES_$(target))")

setup: ## build .venv anew from the pinned lock (LOCK=cpu|cuda, PYTHON=/path/to/python)
	@LOCK="$(LOCK)" PYTHON="$(PYTHON)" scripts/setup.sh

env:
	@LOCK="$(LOCK)" PYTHON="$(PYTHON)" scripts/setup.sh --if-needed

opd: env ## train a tracker by on-policy distillation, measured before and after
	@.venv/bin/fluxforge opd $(FLAGS)

eval: env ## compare harnesses on the same cases
	@.venv/bin/fluxforge eval $(FLAGS)

measure: env ## measure a tracker on held-out dialogues
	@.venv/bin/fluxforge measure $(FLAGS)

record: env ## play bare dialogues once, for `make eval ARGS="--replay FILE"`
	@.venv/bin/fluxforge record $(FLAGS)

plan: env ## print what a run would place where on a cluster (CLUSTER=2x8x141), or why it does not fit
	@.venv/bin/fluxforge plan $(FLAGS)

play: env ## print one dialogue with the oracle state beside it
	@.venv/bin/fluxforge play $(FLAGS)

report: env ## write the report of a run again
	@.venv/bin/fluxforge report $(FLAGS)

data: env ## build a named set of dialogues (SET=general-test) into runs/data/SET
	@.venv/bin/fluxforge build $(FLAGS)

audit: env ## check that the built set runs/data/SET is sound
	@.venv/bin/fluxforge audit "runs/data/$(SET)" $(FLAG_DATA) $(FLAG_ARGS)

bench: env ## measure the speed figures side by side
	@.venv/bin/fluxforge bench $(FLAGS)

# Both suites run, whatever the first one says; the exit status is the first failure's.
test: env ## run all tests, the slow ones (real vLLM and Ray) last
	@status=0; \
	.venv/bin/python -m pytest -m "not slow" $(ARGS) || status=$$?; \
	.venv/bin/python -m pytest -m slow $(ARGS) || status=$$?; \
	exit $$status

lint: env ## check style and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright

format: env ## put the code into the project's format
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

lock: env ## make locks/ from pyproject.toml (ARGS=--upgrade for the newest versions)
	@.venv/bin/python scripts/lock.py $(ARGS)
