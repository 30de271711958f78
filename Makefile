PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed
RUN = runs/quickstart
GPUS = $(shell nvidia-smi -L 2>/dev/null | wc -l)
RANKS ?= $(if $(filter 0,$(GPUS)),2,$(GPUS))

.PHONY: quickstart test test-slow lint bench

# A marker, so that only a change of what is installed installs again.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq -c constraints.txt -e '.[dev]'
	touch $@

# Two ranks (or one a GPU), ZeRO-2, all-MiniLM-L6-v2 on the documentation that comes with Python.
quickstart: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" deepspeed --num_accelerators $(RANKS) launch/pretrain.py --config launch/recipes/quickstart.yaml --output_dir $(RUN)
	$(BIN)/python launch/release.py --run $(RUN) --output $(RUN)/release
	$(BIN)/python launch/rank_document.py --release $(RUN)/release
	@echo
	@echo "curves:   $(BIN)/tensorboard --logdir $(RUN)/tensorboard"
	@echo "summary:  $(RUN)/summary.json"
	@echo "release:  $(RUN)/release  (model card: $(RUN)/release/README.md)"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two at a time, each with one thread.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist worksteal

# The figures of benchmarks/RESULTS.md; CORPUS and BERT_CORPUS are prepared as it says.
bench: $(INSTALLED)
	$(BIN)/python benchmarks/stream.py --corpus $(CORPUS)
	$(BIN)/python benchmarks/prepare.py
	$(BIN)/python benchmarks/train_step.py --corpus $(BERT_CORPUS)
	$(BIN)/python benchmarks/gpu.py --corpus $(CORPUS) --quick
