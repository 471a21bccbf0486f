.PHONY: format check test test-all test-oldest fuzz faults docs

format:
	uv run ruff format .
	uv run ruff check --fix .

check:
	uv run ruff format --check .
	uv run ruff check .
	uv run ty check

test:
	uv run pytest

test-all:
	uv run pytest -m "not fuzz and not faults"

OLDEST = /tmp/percentmatch-oldest
test-oldest:
	uv venv --clear $(OLDEST)
	uv pip install -p $(OLDEST) --resolution lowest-direct --group dev -e ".[export,serve,tensorboard]"
	$(OLDEST)/bin/python -m pytest

fuzz:
	uv run pytest -n0 -m fuzz

faults:
	uv run pytest -n0 -m faults

docs:
	uv run --group docs zensical build --clean
