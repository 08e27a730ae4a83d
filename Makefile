# What the README names. Every target makes its own environment in .venv on first use.

# The first that runs: a name on the PATH may be the empty shell of a version manager.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do $$p -c "" 2>/dev/null && echo $$p && break; done)
# Huge pages, which `ptm` sets for itself.
GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := GLIBC_TUNABLES=$(GLIBC_TUNABLES) $(BIN)/python -m pytest -n 2 --dist loadfile
WORKDIR ?= runs/quickstart
TEXT ?= the loss does not fall
# The newest Python that runs, and what it tests.
NEWEST_PYTHON ?= $(shell for p in python3.14 $$(ls -d $$HOME/.pyenv/versions/3.1[3-9]*/bin/python 2>/dev/null | sort -rV) \
    python3.13 python3.12 python3; do $$p -c "" 2>/dev/null && echo $$p && break; done)
NEWEST := .venv-newest
QUICK := tests/core tests/laws/test_laws_of_corruptions.py tests/laws/test_laws_of_objectives.py tests/test_import_law.py \
    tests/cli/test_listing.py tests/cli/test_train.py tests/training/test_step.py tests/training/test_run.py

.PHONY: quickstart search test test-full test-newest trainings lint bench docs golden add status clean

quickstart: $(VENV)/.run
	$(BIN)/ptm train configs/quickstart.py --workdir $(WORKDIR)
	$(BIN)/ptm predict $(WORKDIR) --task fill-mask --top 5 \
		--text "Returns the number [MASK] elements in the list." \
		--text "If the file does [MASK] exist, an error is raised." \
		--text "The default value [MASK] None."

# The quickstart's model finds the lines of the questions and answers that are nearest to TEXT.
search: $(VENV)/.run
	$(BIN)/ptm predict $(WORKDIR) --task search --input docs/faq.md --top 3 --text "$(TEXT)"

test: $(VENV)/.test
	PTM_TEST_COMPILE=fast $(PYTEST) -m "not full"

test-full: $(VENV)/.parity $(VENV)/.docs $(VENV)/.tpu $(VENV)/.beam $(VENV)/.fastnlp $(VENV)/.fastai $(VENV)/.japanese $(VENV)/.serving $(VENV)/.pykeen \
    $(VENV)/.store $(VENV)/.jobset $(VENV)/.slurm
	GLIBC_TUNABLES=$(GLIBC_TUNABLES) $(BIN)/python tests/run.py

# A quick set under the newest Python: imports, laws, the command line, a training of a few steps.
test-newest: $(NEWEST)/.test
	PTM_TEST_COMPILE=fast GLIBC_TUNABLES=$(GLIBC_TUNABLES) $(NEWEST)/bin/python -m pytest -n 2 --dist loadfile \
	    -m "not full" $(QUICK)

# Trainings whose record or sources have changed since their last pass; writes trainings.json and the word `trains`.
# PTM_TRAINING_MINUTES=n begins none after n minutes.
trainings: $(VENV)/.parity
	PTM_TRAININGS=due $(PYTEST) -m training --write-status tests/systems

lint: $(VENV)/.test
	$(BIN)/ruff check .

bench: $(VENV)/.run
	$(BIN)/python -m benchmarks

# The site, in build/docs; a warning is an error.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q docs build/docs

golden: $(VENV)/.parity
	PYTHONPATH=tests/encoders $(BIN)/python tests/golden/golden_oracles.py

# What a new system needs: golden text, status word, parameter count, mesh coverage; prints what is missing.
add: $(VENV)/.test
	@PTM_TEST_COMPILE=fast $(BIN)/python tests/systems/add.py "$(NAME)"

# What the tests' markers earn, written into the catalogue.
status: $(VENV)/.parity
	PTM_TEST_COMPILE=fast $(PYTEST) --write-status -m "status and not full and not training" tests
	PTM_TEST_COMPILE=fast $(PYTEST) --write-status -m "status and full" tests/laws tests/systems/test_catalogue.py
	$(PYTEST) --write-status -m "status and full and not training" tests --ignore tests/laws \
	    --ignore tests/systems/test_catalogue.py

clean:
	rm -rf $(VENV) $(NEWEST) runs

$(VENV)/.run: setup.cfg
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'ptm_jax needs Python 3.11 or later; this is ' + sys.version)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.test: $(VENV)/.run
	$(PIP) -e ".[test]"
	touch $@

$(NEWEST)/.test: setup.cfg
	test -x $(NEWEST)/bin/python || $(NEWEST_PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	touch $@

$(VENV)/.parity: $(VENV)/.test
	$(PIP) -e ".[test,parity]"
	touch $@

$(VENV)/.docs: $(VENV)/.run
	$(PIP) -e ".[docs]"
	touch $@

# Beam asks for an older protobuf than the one with which Transformers reads sentencepiece models.
$(VENV)/.beam: $(VENV)/.test
	$(PIP) --target $(VENV)/beam "apache-beam>=2.70"
	touch $@

# fastNLP, of which the tests run one file; its own requirements pin old versions.
$(VENV)/.fastnlp: $(VENV)/.parity
	$(PIP) --no-deps --target $(VENV)/fastnlp "FastNLP==1.0.1"
	touch $@

# fastai, of which the tests run one file; the package needs torchvision, pandas and spacy.
$(VENV)/.fastai: $(VENV)/.parity
	$(PIP) --no-deps --target $(VENV)/fastai "fastai==2.8.12"
	touch $@

# MeCab and its dictionary (50 MB), beside whose words tests put transformers'.
$(VENV)/.japanese: $(VENV)/.parity
	$(PIP) --target $(VENV)/japanese "fugashi>=1.4" "ipadic>=1.0"
	touch $@

# jax2onnx and onnxruntime, for the graphs of ptm export, and openvino beside them in benchmarks.quantised; jax2onnx asks for an older orbax-checkpoint, which it does not import.
$(VENV)/.serving: $(VENV)/.parity
	$(PIP) --no-deps --target $(VENV)/serving "jax2onnx==0.17.1" "onnx>=1.20.1" "onnx-ir>=0.2.1" "onnxruntime>=1.24.1" \
	    "equinox>=0.13.1" "jaxtyping>=0.3" "wadler-lindig>=0.1" "dm-pix>=0.4.4" \
	    "openvino==2026.4.1" "openvino-telemetry"
	touch $@

# pykeen, with whose scores of triples tests compare, and `python -m benchmarks.links --speed`; only what it imports.
$(VENV)/.pykeen: $(VENV)/.parity
	$(PIP) --no-deps --target $(VENV)/pykeen "pykeen==1.11.1" "pandas>=2" "class_resolver>=0.6" click_default_group more_click \
	    more_itertools "pystow>=0.4.3" docdata dataclasses-json marshmallow typing-inspect mypy-extensions torch_max_mem \
	    torch-ppr optuna colorlog
	touch $@

# The clients of the extra [store], and servers of both stores on loopback; apart, for they bring 350 MB.
$(VENV)/.store: $(VENV)/.test
	$(PIP) --target $(VENV)/store "gcsfs>=2025.3" "s3fs>=2025.3" "gcp-storage-emulator>=2026.7" "moto[server]>=5.2"
	touch $@

# Models of the custom resource JobSet and of Kubernetes' own types, generated from their published schema.
$(VENV)/.jobset: $(VENV)/.test
	$(PIP) --target $(VENV)/jobset "kubeflow-trainer-api==2.3.0"
	touch $@

# Debian's Slurm, unpacked and not installed, so that no other folder changes. Without apt the tests of it are skipped.
SLURM := slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2 libhwloc15
$(VENV)/.slurm: $(VENV)/.run
	@mkdir -p $(VENV)/slurm && cd $(VENV)/slurm && rm -f *.deb && \
	if apt-get download -qq $(SLURM) 2> /dev/null && for one in *.deb; do dpkg -x $$one . || exit 1; done && rm *.deb; \
	then touch ../.slurm; else echo "no packages of Slurm: its tests are skipped"; fi

# The TPU compiler, where the children of `ptm plan` find it and no other process does.
$(VENV)/.tpu: $(VENV)/.run
	$(PIP) --no-deps --target $(VENV)/tpu "$$($(BIN)/python -c 'from ptm_jax.mesh import chips; print(chips.wanted())')"
	touch $@
