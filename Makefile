# Needs Python 3.11 or later, pip and make. Variables:
#   VENV       where the virtual environment lives
#   PYTHON     the interpreter it is made with
#   PIP_ARGS   more arguments for pip, for instance an --extra-index-url with PyTorch's CPU wheel
#              index: the default wheel of torch brings CUDA libraries of several gigabytes
#   TEST_ARGS  arguments for pytest
#   BENCH_ARGS  arguments for python -m benchmarks
#   CONFORMANCE_ARGS  more arguments for tests.conformance

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP_ARGS ?=
TEST_ARGS ?= -n 2

bin := $(VENV)/bin
requirements := pyproject.toml constraints.txt
# jax is a baseline of the benchmarks only; an environment of its own keeps it out of the tests.
bench_venv := $(VENV)-bench

CONFORMANCE_ARGS ?=

# What the benchmarks run, such as models or ops/softmax-large; everything if empty.
BENCH_ARGS ?=
bench_results := build/benchmarks

.PHONY: help demo test test-with-jax tpu-aot conformance lint types docs bench bench-quick develop \
	clean

help:
	@echo "make demo     embed sentences with a pretrained model, compiled, beside eager PyTorch"
	@echo "make test     run the test suite"
	@echo "make test-with-jax  run the tests of a process that also uses jax"
	@echo "make tpu-aot  compile the models of the tests for TPUs, without one; hours"
	@echo "make conformance  run PyTorch's own test databases; hours, resumable"
	@echo "make lint     ruff, typos, validate-pyproject"
	@echo "make types    mypy"
	@echo "make docs     build docs/ into build/docs, warnings are errors"
	@echo "make bench    run the benchmarks beside their baselines (installs jax); hours"
	@echo "make bench-quick    run them small: shows breakage, not speed"
	@echo "make develop  install everything a change needs, for use with pre-commit"
	@echo "make clean    remove the environments and what tools left behind"

demo: $(VENV)/.installed-examples
	$(bin)/python examples/sentence_embeddings.py

test: $(VENV)/.installed-test
	$(bin)/python -m pytest $(TEST_ARGS)

lint: $(VENV)/.installed-dev
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/typos
	$(bin)/validate-pyproject pyproject.toml

# jax lies beside the environment, not in it: only the tests of living with it see it.
test-with-jax: $(VENV)/.installed-test
	$(bin)/python -m pip install $(PIP_ARGS) --quiet --no-deps --upgrade \
		--constraint constraints.txt --target $(VENV)/with-jax jax opt_einsum
	PYTHONPATH=$(VENV)/with-jax $(bin)/python -m pytest tests/with_jax

tpu-aot: $(VENV)/.installed-test
	$(bin)/python -m pytest --full tests/ahead/test_models_for_chips.py $(TEST_ARGS)

conformance: $(VENV)/.installed-test
	$(bin)/python -m tests.conformance --all --results build/conformance/all.jsonl $(CONFORMANCE_ARGS)

types: $(VENV)/.installed-dev
	$(bin)/mypy

docs: $(VENV)/.installed-docs
	$(bin)/mkdocs build

bench: $(bench_venv)/.installed-bench
	$(bench_venv)/bin/python -m benchmarks $(BENCH_ARGS) --json $(bench_results)/results.json \
		--history $(bench_results)/history.jsonl --html $(bench_results)/index.html

bench-quick: $(bench_venv)/.installed-bench
	$(bench_venv)/bin/python -m benchmarks $(BENCH_ARGS) --quick

develop: $(VENV)/.installed-dev $(VENV)/.installed-test $(VENV)/.installed-docs

clean:
	rm -rf $(VENV) $(bench_venv) build dist
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each extra: an edit of the requirements installs again, nothing else does.
define install_rule
$(1)/bin/python:
	$$(PYTHON) -m venv $(1)

$(1)/.installed-%: $$(requirements) | $(1)/bin/python
	$(1)/bin/python -m pip install $$(PIP_ARGS) --constraint constraints.txt --editable '.[$$*]'
	@touch $$@
endef
$(eval $(call install_rule,$(VENV)))
$(eval $(call install_rule,$(bench_venv)))
