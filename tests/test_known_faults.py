"""Every kind of fault that users of other semantic caches reported has its test here.

The numbers are those of the table of reported faults; a test tells which it covers by its name.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
REPORTED = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 19, 20, 22, 25, 26, 28, 30}
REPORTED |= {33, 35, 36, 37}
_NAME = re.compile(r"def test_known_fault((?:_\d\d)+)_[a-z]")


def test_each_reported_fault_has_a_test() -> None:
    covered = {
        int(number)
        for file in TESTS.rglob("test_*.py")
        for name in _NAME.findall(file.read_text(encoding="utf-8"))
        for number in name.split("_")[1:]
    }
    assert covered == REPORTED
