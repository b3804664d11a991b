"""The arena against brute force, and what must not happen: a removed vector found again."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tierway.cache.index import Arena
from tierway.cache.int8_rows import quantise

Floats = NDArray[np.float32]

DIM = 384


def unit(vectors: NDArray[Any]) -> Floats:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / lengths, np.float32)


def clustered(number: int, *, dim: int = DIM, per_cluster: int = 20, seed: int = 1) -> Floats:
    """Like questions: topics, wordings near each other, and one direction all share."""
    random = np.random.default_rng(seed)
    centres = unit(random.standard_normal((number // per_cluster + 1, dim)))
    noise = unit(random.standard_normal((number, dim)))
    shared = unit(random.standard_normal(dim))
    return unit(centres[np.arange(number) // per_cluster] + 0.6 * noise + 0.8 * shared)


def near(vectors: Floats, distance: float, seed: int = 2) -> Floats:
    random = np.random.default_rng(seed)
    return unit(vectors + distance * unit(random.standard_normal(vectors.shape)))


def filled(vectors: Floats, partition: bytes = b"p", **settings: int) -> Arena:
    arena = Arena(vectors.shape[1], **settings)
    for key, vector in enumerate(vectors):
        arena.add(partition, key, vector)
    return arena


def test_search_ranks_by_cosine_best_first() -> None:
    vectors = clustered(300)
    arena = filled(vectors)
    query = near(vectors[7], 0.3)
    found = arena.search(b"p", query, 10)
    truth = vectors @ query
    assert [key for key, _ in found[:1]] == [7]
    assert [cosine for _, cosine in found] == sorted((c for _, c in found), reverse=True)
    assert {key for key, _ in found} == set(np.argsort(-truth)[:10].tolist())
    assert all(abs(cosine - truth[key]) <= 0.002 for key, cosine in found)


@pytest.mark.parametrize(("dim", "off"), [(128, 0.003), (384, 0.002), (512, 0.002), (768, 0.002)])
def test_int8_rows_hardly_change_a_cosine(dim: int, off: float) -> None:
    vectors = clustered(400, dim=dim)
    arena = filled(vectors)
    for query in near(vectors[::8], 0.5):
        truth = vectors @ query
        found = arena.search(b"p", query, 400)
        assert max(abs(cosine - truth[key]) for key, cosine in found) <= off


def test_a_vector_need_not_have_unit_length() -> None:
    arena = Arena(4)
    arena.add(b"p", 1, np.array([3, 0, 0, 0], np.float32))
    arena.add(b"p", 2, np.array([0, 0.01, 0.01, 0], np.float32))
    ((key, cosine),) = arena.search(b"p", np.array([0, 50, 50, 0], np.float32), 1)
    assert key == 2
    assert 0.999 <= cosine <= 1.0


def test_equal_vectors_come_in_the_order_of_their_keys() -> None:
    arena = Arena(4)
    for key in (9, 3, 7):
        arena.add(b"p", key, np.ones(4, np.float32))
    assert [key for key, _ in arena.search(b"p", np.ones(4, np.float32), 5)] == [3, 7, 9]


def test_partitions_do_not_see_each_other() -> None:
    vectors = clustered(40)
    arena = filled(vectors[:20], b"one")
    for key, vector in enumerate(vectors[20:], start=20):
        arena.add(b"two", key, vector)
    assert {key for key, _ in arena.search(b"one", vectors[25], 99)} == set(range(20))
    assert {key for key, _ in arena.search(b"two", vectors[25], 99)} == set(range(20, 40))
    assert arena.search(b"three", vectors[25], 99) == []
    assert (arena.size(b"one"), arena.size(b"two"), arena.size(b"three")) == (20, 20, 0)


def test_adding_a_key_again_moves_it() -> None:
    arena = Arena(2)
    arena.add(b"one", 1, np.array([1, 0], np.float32))
    arena.add(b"two", 1, np.array([0, 1], np.float32))
    assert arena.search(b"one", np.array([1, 0], np.float32), 5) == []
    assert arena.search(b"two", np.array([0, 1], np.float32), 5) == [(1, 1.0)]
    assert len(arena) == 1


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(8, np.float32),
        np.full(8, np.nan, np.float32),
        np.array([1, 1, 1, np.inf, 1, 1, 1, 1], np.float32),
        np.array([1, 1, 1, np.nan, 1, 1, 1, 1], np.float32),
        np.ones(7, np.float32),
        np.ones((1, 8), np.float32),
    ],
)
def test_vectors_without_a_direction_are_refused(vector: Floats) -> None:
    arena = Arena(8)
    arena.add(b"p", 1, np.ones(8, np.float32))
    with pytest.raises(ValueError, match="a vector of"):
        arena.add(b"p", 1, vector)
    with pytest.raises(ValueError, match="a vector of"):
        arena.search(b"p", vector, 1)
    assert [key for key, _ in arena.search(b"p", np.ones(8, np.float32), 5)] == [1]


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"dim": 0}, {"dim": 8, "large": 0}, {"dim": 8, "rerank": -1}):
        with pytest.raises(ValueError, match="all must be > 0"):
            Arena(**wrong)
    assert filled(clustered(3)).search(b"p", clustered(3)[0], 0) == []


def test_large_partitions_keep_the_true_neighbour() -> None:
    """20,000 vectors of clusters, queries at several distances from what is stored."""
    vectors = clustered(20_000)
    arena = filled(vectors)
    random = np.random.default_rng(3)
    right = asked = 0
    for distance in (0.1, 0.3, 0.5):
        queries = near(vectors[random.integers(0, len(vectors), 120)], distance)
        nearest = (queries @ vectors.T).argmax(axis=1)
        for query, wanted in zip(queries, nearest, strict=True):
            ((key, cosine),) = arena.search(b"p", query, 1)
            asked += 1
            # int8 may swap two neighbours that are equally near
            right += key == wanted or cosine >= float(query @ vectors[wanted]) - 0.002
    assert right / asked >= 0.997


def test_a_large_partition_stays_right_while_it_changes() -> None:
    vectors = clustered(6000, dim=70, per_cluster=4)  # 70: codes of no whole number of words
    arena = filled(vectors[:3000], large=500)
    assert arena.search(b"p", vectors[2999], 1)[0][0] == 2999
    for key in range(0, 3000, 2):
        arena.remove(key)
    for key in range(3000, 6000):
        arena.add(b"p", key, vectors[key])
    living = {*range(1, 3000, 2), *range(3000, 6000)}
    assert arena.size(b"p") == len(living)
    for key in range(0, 6000, 25):
        found = dict(arena.search(b"p", vectors[key], 100))
        assert len(found) == 100
        assert set(found) <= living
        assert (key in found) == (key in living)
    for key in range(3000, 6000):
        arena.remove(key)
    for key in range(1, 2900, 2):
        arena.remove(key)
    assert {key for key, _ in arena.search(b"p", vectors[0], 100)} == set(range(2901, 3000, 2))


def test_codes_follow_a_partition_whose_vectors_drift() -> None:
    """A direction that all newcomers share would set every bit of codes with the old mean."""
    early, late = clustered(500, seed=5), clustered(4000, seed=6)
    late = unit(late + 4 * late.mean(axis=0) / np.linalg.norm(late.mean(axis=0)))
    arena = filled(early, large=200, rerank=1)
    arena.search(b"p", early[0], 1)
    for key, vector in enumerate(late, start=500):
        arena.add(b"p", key, vector)
    queries = near(late[::10], 0.05)
    right = [arena.search(b"p", q, 1)[0][0] == 500 + 10 * n for n, q in enumerate(queries)]
    assert np.mean(right) >= 0.997


def test_a_partition_that_shrank_gives_its_codes_back() -> None:
    vectors = clustered(2000)
    arena = filled(vectors, large=500)
    before = arena.nbytes
    arena.search(b"p", vectors[0], 1)
    assert arena.nbytes >= before + 2000 * DIM // 8
    for key in range(1900):
        arena.remove(key)
    assert arena.nbytes <= before * 1.01
    assert arena.search(b"p", vectors[1950], 1)[0][0] == 1950


def test_memory_is_used_again_and_empty_partitions_vanish() -> None:
    vectors = clustered(2000)
    arena = filled(vectors, large=500)
    arena.search(b"p", vectors[0], 1)
    full = arena.nbytes
    assert full < 2000 * 1.5 * (DIM + DIM // 8 + 20) + 2000 * 60
    for turn in range(5):
        for key in range(2000):
            arena.remove(key)
        assert (len(arena), arena.size(b"p")) == (0, 0)
        assert arena.search(b"p", vectors[0], 5) == []
        for key, vector in enumerate(vectors):
            arena.add(f"p{turn}".encode() if turn < 4 else b"p", key, vector)
    arena.search(b"p", vectors[0], 1)
    assert arena.nbytes <= full * 1.01


def test_removing_what_is_not_there_does_nothing() -> None:
    arena = Arena(2)
    arena.remove(5)
    arena.add(b"p", 5, np.ones(2, np.float32))
    arena.remove(5)
    arena.remove(5)
    assert len(arena) == 0


Step = tuple[str, int, int, int]

steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "remove", "search"]),
        st.integers(0, 15),
        st.integers(0, 2),
        st.integers(0, 2**32 - 1),
    ),
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(steps=steps, large=st.sampled_from([2, 5, 4096]))
def test_any_sequence_agrees_with_a_dictionary(steps: list[Step], large: int) -> None:
    """Fewer vectors than are ranked again, so that codes too must give exact answers."""
    arena = Arena(24, large=large)
    model: dict[int, tuple[bytes, Floats]] = {}
    for action, key, group, seed in steps:
        partition = b"abc"[group : group + 1]
        vector = unit(np.random.default_rng(seed).standard_normal(24))
        if action == "add":
            arena.add(partition, key, vector)
            model[key] = (partition, vector)
        elif action == "remove":
            arena.remove(key)
            model.pop(key, None)
        else:
            wanted = {k: float(v @ vector) for k, (p, v) in model.items() if p == partition}
            found = arena.search(partition, vector, 20)
            assert {k for k, _ in found} == set(wanted)
            assert all(abs(cosine - wanted[k]) < 0.01 for k, cosine in found)
        members = [k for k, (p, _) in model.items() if p == partition]
        assert arena.size(partition) == len(members)
        assert len(arena) == len(model)


def in_threads(*works: Callable[[], None]) -> list[BaseException]:
    """Runs all at once; what they raised."""
    raised: list[BaseException] = []
    gate = threading.Barrier(len(works))

    def guarded(work: Callable[[], None]) -> None:
        gate.wait()
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_searches_in_threads_while_the_loop_adds_and_removes() -> None:
    vectors = clustered(3000, dim=64)
    arena = filled(vectors[:1500], b"p", large=300)
    removed: set[int] = set()
    over = threading.Event()

    def change() -> None:
        try:
            for key in range(1500, 3000):
                arena.add(b"p" if key % 3 else b"q", key, vectors[key])
                arena.remove(key - 1500)
                removed.add(key - 1500)
        finally:
            over.set()

    def look() -> None:
        turn = 0
        while not over.is_set():
            turn += 1
            gone = set(removed)
            found = arena.search(b"p", vectors[turn % 3000], 10)
            assert not {key for key, _ in found} & gone
            assert all(key < 1500 or key % 3 for key, _ in found)
            for key, cosine in found:
                assert cosine == pytest.approx(float(vectors[key] @ vectors[turn % 3000]), abs=0.01)

    assert in_threads(change, look, look) == []
    found = dict(arena.search(b"p", vectors[2999], 2000))
    assert set(found) <= {key for key in range(1500, 3000) if key % 3}
    assert len(found) == arena.size(b"p") == 1000
    # No code was lost or mixed up on the way.
    assert [arena.search(b"p", vectors[key], 1)[0][0] for key in found] == list(found)


def test_faiss_is_loaded_for_large_partitions_only() -> None:
    script = """
import sys
import numpy as np
from tierway.cache.index import Arena
from tierway.cache.sign_codes import FAISS_FROM
arena = Arena(8, large=100)
for key in range(FAISS_FROM):
    arena.add(b"p", key, np.ones(8))
    if key in (50, 200, FAISS_FROM - 2):
        assert arena.search(b"p", np.ones(8), 1) and "faiss" not in sys.modules
assert arena.search(b"p", np.ones(8), 1)
assert "faiss" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_many_at_once_are_found_as_one_by_one() -> None:
    vectors = clustered(900, dim=64)
    one, many = Arena(64, large=200), Arena(64, large=200)
    names = [b"abc"[at % 3 : at % 3 + 1] for at in range(900)]
    for start in range(0, 900, 300):
        part = slice(start, start + 300)
        many.add_many(names[part], range(start, start + 300), quantise(vectors[part]))
        many.search(b"a", vectors[0], 1)  # codes are there from the third part on
        many.remove(start)
    for key, vector in enumerate(vectors):
        one.add(names[key], key, vector)
    for key in (0, 300, 600):
        one.remove(key)
    assert len(many) == len(one) == 897
    for query in near(vectors[::30], 0.2):
        for name in (b"a", b"b", b"c"):
            found, wanted = many.search(name, query, 5), one.search(name, query, 5)
            assert [key for key, _ in found] == [key for key, _ in wanted]
            cosines = [cosine for _, cosine in wanted]
            assert [cosine for _, cosine in found] == pytest.approx(cosines, abs=1e-5)


def test_rows_that_are_no_vectors_are_refused_together() -> None:
    arena = Arena(4)
    rows = quantise(clustered(3, dim=4))
    rows[1] = 0
    with pytest.raises(ValueError, match="length 0"):
        arena.add_many([b"p"] * 3, range(3), rows)
    with pytest.raises(ValueError, match=r"must be \(2, 4\)"):
        arena.add_many([b"p"] * 2, range(2), rows)
    assert len(arena) == 0


def test_a_cleared_arena_is_as_new_and_a_search_under_way_finds_nothing() -> None:
    vectors = clustered(1000, dim=64)
    arena = filled(vectors, large=100)
    arena.prepare()
    part = arena._partitions[b"p"]
    arena.clear()
    assert (len(arena), arena.size(b"p"), arena.search(b"p", vectors[0], 3)) == (0, 0, [])
    assert part.codes is not None
    assert arena._search_codes(part, part.codes, vectors[0], 3) == []
    arena.add(b"p", 5, vectors[5])
    assert [key for key, _ in arena.search(b"p", vectors[5], 3)] == [5]


def test_prepared_codes_are_not_made_again_by_a_search() -> None:
    arena = filled(clustered(1000, dim=64), large=100)
    arena.prepare()
    before = arena._partitions[b"p"].codes
    assert before is not None
    arena.search(b"p", clustered(1, dim=64)[0], 1)
    assert arena._partitions[b"p"].codes is before
