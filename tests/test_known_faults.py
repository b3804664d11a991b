"""Every kind of fault that users of other caches and balancers reported has its test here.

The numbers are those of the two tables of reported faults; a test tells which it covers by its
name: `test_known_fault_05_...` of the caches' table, `test_balancer_fault_05_...` of the other.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CACHE = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 19, 20, 22, 25, 26, 28, 30}
CACHE |= {33, 35, 36, 37}
BALANCER = {1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 14, 15, 16, 18, 19, 20, 23, 24, 25}


@pytest.mark.parametrize(("kind", "reported"), [("known", CACHE), ("balancer", BALANCER)])
def test_each_reported_fault_has_a_test(kind: str, reported: set[int]) -> None:
    name = re.compile(rf"def test_{kind}_fault((?:_\d\d)+)_[a-z]")
    covered = {
        int(number)
        for file in TESTS.rglob("test_*.py")
        for numbers in name.findall(file.read_text(encoding="utf-8"))
        for number in numbers.split("_")[1:]
    }
    assert covered == reported
