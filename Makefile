.PHONY: format check test test-all

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
