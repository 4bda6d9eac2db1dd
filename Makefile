.PHONY: check test

check:  ## format, lint and types
	ruff format --check .
	ruff check .
	mypy

test:  ## every test, with the coverage that core, sampling and proposers must keep
	python -m pytest --cov=specdec.core --cov=specdec.sampling --cov=specdec.proposers --cov-fail-under=95
