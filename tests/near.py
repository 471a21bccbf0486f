"""Comparing what two runs wrote: numbers within a tolerance, everything else exactly."""

from typing import Any

import pytest


def assert_near(found: Any, expected: Any, *, rel: float, abs: float = 1e-12, where: str = "") -> None:
    """Nested dicts and lists of equal shape, whose numbers differ by at most `rel` of the expected one or by `abs`.

    None, text and booleans must be equal. `pytest.approx` alone refuses a list that holds None where `rel` is given,
    from pytest 9.2 on.
    """
    if isinstance(found, dict) and isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for name, value in found.items():
            assert_near(value, expected[name], rel=rel, abs=abs, where=f"{where}.{name}")
    elif isinstance(found, list) and isinstance(expected, list):
        assert len(found) == len(expected), where
        for n, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_near(one, other, rel=rel, abs=abs, where=f"{where}[{n}]")
    elif {type(found), type(expected)} <= {int, float}:
        assert found == pytest.approx(expected, rel=rel, abs=abs), where
    else:
        assert found == expected, where
        assert type(found) is type(expected), where
