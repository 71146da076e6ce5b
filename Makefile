# make demo   train a dense GPT and the papers' CoFrGeNet on presidents' speeches, compare them, read samples
# make test   everything the project promises, checked
# make check  the daily check: style, and the tests of layers, kernels, models, configs and documentation
# make lint   style only
# make clean  remove the virtual environment, the caches and the demo's runs and data; nothing else

PYTHON ?= python3
PY = .venv/bin/python
DATA = data/sotu/bpe4096
CHECKED = tests/layers tests/kernels tests/test_config.py tests/test_configurator.py \
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

.venv/installed: requirements.txt
	@echo "== installing the pinned requirements into .venv"
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed; run make PYTHON=python3.11')"
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

.venv/tools: requirements-test.txt .venv/installed
	@echo "== installing what the tests need"
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-test.txt
	@touch $@

$(DATA)/meta.json: | .venv/installed
	@echo "== preparing the data: State of the Union speeches, 1790 to today"
	$(PY) data/sotu/prepare.py
