.PHONY: format check test test-all docs

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
	uv run pytest -m ""

docs:
	uv run --group docs zensical build --clean
