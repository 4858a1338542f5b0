# FluxForge's front door. `make help` lists the targets; each first makes sure that .venv matches its lock.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# Some shells export NAME (the machine's, under WSL): only the one on make's own command line is meant.
ifeq ($(origin NAME),environment)
NAME :=
endif

# Given as NAME=..., and passed on only where given. A path or value with blanks goes into ARGS, quoted.
FLAGS = $(if $(NAME),--name "$(NAME)") $(if $(SEED),--seed "$(SEED)") $(if $(DATA),--data "$(DATA)") \
	$(if $(filter-out 0,$(SMOKE)),--smoke) $(if $(filter-out 0,$(RESUME)),--resume) \
	$(if $(WANDB),--wandb "$(WANDB)") $(if $(TRACKER),--tracker "$(TRACKER)") $(ARGS)
JOBS := opd eval play report bench

.PHONY: help setup env $(JOBS) test lint format lock

help: ## list the targets and what they take
	@echo "usage: make TARGET [NAME=run] [SEED=n] [DATA=folder] [SMOKE=1] [RESUME=1] [WANDB=offline] [TRACKER=model] [ARGS=\"--key value\"]"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## build .venv anew from the pinned lock (LOCK=cpu|cuda, PYTHON=/path/to/python)
	@LOCK="$(LOCK)" PYTHON="$(PYTHON)" scripts/setup.sh

env:
	@LOCK="$(LOCK)" PYTHON="$(PYTHON)" scripts/setup.sh --if-needed

opd: env ## train a tracker by on-policy distillation, measured before and after
	@.venv/bin/fluxforge opd $(FLAGS)

eval: env ## measure a tracker on held-out dialogues
	@.venv/bin/fluxforge eval $(FLAGS)

play: env ## print one dialogue with the oracle state beside it
	@.venv/bin/fluxforge play $(FLAGS)

report: env ## write the report of a run again
	@.venv/bin/fluxforge report $(FLAGS)

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
