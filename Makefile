# make demo   train a dense GPT and the papers' CoFrGeNet on presidents' speeches, compare them, read samples
# make test   everything the project promises, checked
# make check  the daily check: style, and the tests of layers, kernels, models, configs and documentation
# make lint   style only
# make clean  remove the virtual environment, the caches and the demo's runs and data; nothing else

# TORCH=cpu takes the build of PyTorch without CUDA, which needs uv: make demo TORCH=cpu

PYTHON ?= python3
PY = .venv/bin/python
UV := $(shell command -v uv 2>/dev/null)
TORCH ?=
DATA = data/sotu/bpe4096
CHECKED = tests/layers tests/kernels tests/test_config.py tests/test_paper_configs.py tests/test_configurator.py \
  tests/test_count.py tests/test_docs.py tests/test_golden.py tests/test_imports.py tests/test_mixers_by_layer.py \
  tests/test_model.py

.PHONY: demo test check lint clean setup

demo: setup $(DATA)/meta.json
	@echo "== 1/4 a dense GPT"
	$(PY) train.py config/demo_dense.py --resume=True
	@echo "== 2/4 the papers' CoFrGeNet of the same width: continued fractions in attention and feed-forward"
	$(PY) train.py config/demo_cofrgenet.py --resume=True
	@echo "== 3/4 one opening, two authors"
	$(PY) sample.py out/demo_dense --start="My fellow citizens, the state of our Union" --max_new_tokens=150
	$(PY) sample.py out/demo_cofrgenet --start="My fellow citizens, the state of our Union" --max_new_tokens=150
	@echo "== 4/4 side by side"
	@rm -f out/demo.png
	$(PY) compare.py out/demo_dense out/demo_cofrgenet --plot=out/demo.png

test: setup .venv/tools
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pytest

check: setup .venv/tools
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pytest -m "not slow" $(CHECKED)

lint: .venv/tools
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis $(DATA) out/demo_dense out/demo_cofrgenet out/demo.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: .venv/installed
	@$(PY) -c "from models.compilation import missing_for_compile; lacks = missing_for_compile(); \
	  print('torch.compile is available' if not lacks else 'torch.compile lacks ' + ' and '.join(lacks) + ': training will run without it')"

# $(call install,EXTRAS): the packages that pyproject.toml lists, by uv where it is there, or else by pip
define install
$(if $(UV),$(UV) pip install --quiet --python $(PY) $(addprefix --torch-backend=,$(TORCH)) -r pyproject.toml \
  $(addprefix --extra=,$(1)),$(PY) -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
  lists = [project['dependencies'], *map(project['optional-dependencies'].get, '$(1)'.split())]; \
  print(*sum(lists, []), sep='\n')" > .venv/packages.txt && \
  $(PY) -m pip install --quiet --disable-pip-version-check -r .venv/packages.txt)
endef

.venv/installed: pyproject.toml
	@echo "== installing the packages of pyproject.toml into .venv"
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed; run make PYTHON=python3.11')"
	$(if $(TORCH),$(if $(UV),,$(error TORCH=$(TORCH) needs uv. With pip, leave TORCH out and set PIP_EXTRA_INDEX_URL to the index that pytorch.org names)))
	$(if $(UV),$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv,$(PYTHON) -m venv .venv)
	$(call install,)
	@touch $@

.venv/tools: pyproject.toml .venv/installed
	@echo "== installing what the tests need"
	$(call install,data track eval test)
	@touch $@

$(DATA)/meta.json: | .venv/installed
	@echo "== preparing the data: State of the Union speeches, 1790 to today"
	$(PY) data/sotu/prepare.py
