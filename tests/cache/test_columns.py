"""Rows in columns: the map from number to row agrees with a dictionary, whatever happens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.cache.columns import STEADY, FreeRows, RowMap, grown, room_for

NUMBERS = st.integers(0, 2**64 - 1) | st.integers(0, 12)


def mapped(numbers: list[int], room: int = 16) -> tuple[RowMap, np.ndarray]:
    column = np.zeros(room, np.uint64)
    column[: len(numbers)] = numbers
    made = RowMap(column)
    made.put_many(np.arange(len(numbers), dtype=np.int32))
    return made, column


@given(st.lists(st.tuples(st.booleans(), NUMBERS), max_size=80))
def test_any_sequence_of_puts_and_removals_agrees_with_a_dictionary(
    steps: list[tuple[bool, int]],
) -> None:
    rows, column = FreeRows(), np.zeros(128, np.uint64)
    made, model = RowMap(column), {}
    for puts, number in steps:
        row = model.get(number)
        if puts and row is None:
            row = model[number] = rows.take()
            column[row] = number
            made.put(row)
        elif not puts and row is not None:
            made.remove(row)
            rows.give(model.pop(number))
        assert len(rows) == len(model)
        assert all(made.find(known) == at for known, at in model.items())
        assert made.find(number) == model.get(number, -1)
    asked = np.array([number for _, number in steps], np.uint64)
    wanted = [model.get(number, -1) for _, number in steps]
    assert made.find_many(asked).tolist() == wanted


@given(st.lists(NUMBERS, unique=True, max_size=100))
def test_many_at_once_are_found_as_one_by_one(numbers: list[int]) -> None:
    made, _ = mapped(numbers, room=100)
    assert [made.find(number) for number in numbers] == list(range(len(numbers)))
    made.remove(0) if numbers else None
    assert [made.find(number) for number in numbers[1:]] == list(range(1, len(numbers)))


def test_rows_of_equal_number_are_removed_each_by_itself() -> None:
    made, _ = mapped([7, 7, 7])
    made.remove(1)
    assert made.find(7) in (0, 2)
    made.remove(0)
    assert made.find(7) == 2
    made.remove(2)
    assert made.find(7) == -1


def test_a_column_that_grew_keeps_its_rows() -> None:
    made, column = mapped(list(range(100, 116)))
    larger = grown(column, 64)
    made.rebuild(larger, np.arange(16, dtype=np.int32))
    larger[16] = 500
    made.put(16)
    assert made.find(500) == 16
    assert [made.find(number) for number in range(100, 116)] == list(range(16))


def test_rows_given_back_are_taken_first_and_new_ones_lie_together() -> None:
    rows = FreeRows()
    assert [rows.take() for _ in range(3)] == [0, 1, 2]
    rows.give(1)
    assert rows.take_new(5) == 3
    assert (rows.take(), rows.take(), len(rows), rows.top) == (1, 8, 9, 9)


@pytest.mark.parametrize(
    ("rows", "room"),
    [(0, 256), (200, 400), (STEADY, 2 * STEADY), (STEADY + 1, 1_000_000), (1_000_002, 1_500_003)],
)
def test_room_doubles_while_that_is_cheap_then_is_for_all(rows: int, room: int) -> None:
    assert room_for(rows, 1_000_000) == room


def test_room_is_never_for_more_than_are_expected() -> None:
    assert [room_for(rows, 10) for rows in (0, 5, 10)] == [10, 10, 10]
