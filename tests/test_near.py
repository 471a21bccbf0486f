"""The comparison that tests of runs use can fail."""

from typing import Any

import pytest

from near import assert_near


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([1.0, None], [1.05, None]),
        ({"a": [None, 0.0], "b": "x"}, {"a": [None, 0.005], "b": "x"}),
        (100, 109.0),
        ([], []),
    ],
)
def test_it_passes(found: Any, expected: Any) -> None:
    """Within a tenth of the expected number, or 0.01: 1 of 1.05, 0 of 0.005, 100 of 109."""
    assert_near(found, expected, rel=0.1, abs=0.01)


@pytest.mark.parametrize(
    ("found", "expected", "where"),
    [
        ([1.0, None], [1.2, None], r"row\[0\]"),  # 0.2 is more than 0.12
        ([None], [0.0], r"row\[0\]"),
        ([0.0], [None], r"row\[0\]"),
        ([None, 1.0], [None], "row"),
        ({"a": [0.0]}, {"a": [0.02]}, r"row\.a\[0\]"),
        ({"a": 1}, {"b": 1}, "row"),
        ([1.0], 1.0, "row"),
        (True, 1, "row"),
        ("x", "y", "row"),
        (float("nan"), 1.0, "row"),
    ],
)
def test_it_fails_and_says_where(found: Any, expected: Any, where: str) -> None:
    with pytest.raises(AssertionError, match=f"^{where}$|^{where}\n"):
        assert_near(found, expected, rel=0.1, abs=0.01, where="row")
