.PHONY: format check test test-all fuzz faults docs

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

fuzz:
	uv run pytest -m fuzz

faults:
	uv run pytest -n0 -m faults

docs:
	uv run --group docs zensical build --clean
