"""The prefix index: who is believed to hold what, in bounded memory."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tierway.router.prefixes import PrefixIndex

draw = random.Random(5)
A = tuple(draw.getrandbits(64) for _ in range(40))
B = tuple(draw.getrandbits(64) for _ in range(40))


def tails(head: tuple[int, ...], number: int, size: int = 3) -> list[tuple[int, ...]]:
    return [(*head, *(draw.getrandbits(64) for _ in range(size))) for _ in range(number)]


def test_nothing_is_held_at_the_start() -> None:
    index = PrefixIndex()
    assert index.match(A).held == {}
    assert index.match(()).held == {}
    assert index.match(A).common == 0


def test_each_replica_is_matched_as_far_as_it_holds() -> None:
    index = PrefixIndex()
    index.insert("one", A)
    index.insert("two", A[:7])
    index.insert("three", B)
    assert index.match(A).held == {"one": 40, "two": 7}
    assert index.match((*A[:20], *B[:20])).held == {"one": 20, "two": 7}
    assert index.match(B).held == {"three": 40}


def test_the_oldest_goes_first_and_tails_before_heads() -> None:
    index = PrefixIndex()
    index.resize("one", 50)
    index.insert("one", A)
    index.insert("one", B)
    assert index.match(B).held == {"one": 40}
    assert index.match(A).held == {"one": 10}


def test_use_keeps_what_is_used() -> None:
    index = PrefixIndex()
    index.resize("one", 50)
    index.insert("one", A)
    index.insert("one", B[:10])
    index.insert("one", A)
    index.insert("one", tails((), 1, size=10)[0])
    assert index.match(A).held == {"one": 40}
    assert index.match(B).held == {}


def test_of_a_prompt_that_has_no_room_the_head_is_held() -> None:
    index = PrefixIndex()
    index.resize("one", 16)
    index.insert("one", A)
    assert index.match(A).held == {"one": 16}
    index.resize("one", 0)
    index.insert("one", A)
    assert index.match(A).held == {}


def test_a_smaller_room_forgets_at_once_and_a_like_one_is_the_same() -> None:
    index = PrefixIndex(default_blocks=40)
    index.insert("one", A)
    index.resize("one", 38)
    assert index.match(A).held == {"one": 40}
    index.resize("one", 20)
    assert index.match(A).held == {"one": 20}


def test_a_replica_that_is_gone_holds_nothing_and_leaves_nothing() -> None:
    index = PrefixIndex()
    for prompt in tails(A, 200):
        index.insert("gone", prompt)
    index.insert("stays", A[:3])
    index.remove("gone")
    index.remove("never there")
    assert index.match(A).held == {"stays": 3}
    for _ in range(10):
        index.insert("stays", B)
    assert index.stats().distinct == 43
    assert set(index.stats().blocks) == {"stays"}


def test_a_replica_that_comes_back_begins_anew() -> None:
    index = PrefixIndex()
    index.insert("one", A)
    index.remove("one")
    index.insert("one", B[:5])
    assert index.match(A).held == {}
    assert index.match(B).held == {"one": 5}


def test_a_dead_owner_poisons_no_session() -> None:
    """The session moves with its next turn, whole, and other sessions do not meet it."""
    index = PrefixIndex()
    index.insert("dead", A[:10])
    index.remove("dead")
    index.insert("other", A[:20])
    assert index.match(A).held == {"other": 20}
    assert index.match(tails((0,), 1)[0]).held == {}


# ---- what everybody shares ---------------------------------------------------------------------


def test_balancer_fault_02_a_head_is_common_from_its_fourth_follower_on() -> None:
    index = PrefixIndex()
    prompts = tails(A[:8], 5)
    for number, prompt in enumerate(prompts):
        assert index.match(prompt).common == (8 if number >= 4 else 0)
        index.insert(f"replica-{number % 2}", prompt)


def test_a_session_that_grows_is_never_common() -> None:
    index = PrefixIndex()
    for upto in range(1, 41):
        index.insert("one", A[:upto])
        index.insert("two", A[:upto])
    assert index.match(A).common == 0


def test_the_same_prompt_again_is_no_new_follower() -> None:
    index = PrefixIndex()
    prompts = tails(A[:8], 3)
    for _ in range(10):
        for prompt in prompts:
            index.insert("one", prompt)
            index.insert("two", prompt)
    assert index.match(prompts[0]).common == 0


def test_a_follower_that_went_and_came_back_is_no_new_one() -> None:
    index = PrefixIndex()
    index.resize("one", 40)
    for _ in range(10):
        index.insert("one", A)
        index.insert("one", B[:20])
        index.insert("one", A[:20])
    assert index.match(A).common == 0


def test_the_deepest_common_head_counts() -> None:
    index = PrefixIndex()
    for prompt in tails(A[:4], 4) + tails(A[:9], 4):
        index.insert("one", prompt)
    assert index.match(A).common == 9
    assert index.match((*A[:6], *B)).common == 4


def test_what_only_a_removed_replica_held_is_not_common() -> None:
    index = PrefixIndex()
    for prompt in tails(A[:8], 5):
        index.insert("one", prompt)
    index.insert("two", B)
    index.remove("one")
    assert index.match(A).common == 0


# ---- engines' own word -------------------------------------------------------------------------


def test_an_engine_whose_cache_is_empty_is_forgotten_and_learns_anew() -> None:
    index = PrefixIndex()
    index.resize("one", 100)
    index.insert("one", A)
    index.insert("two", A)
    for _ in range(4):
        index.correct("one", 2000, 0)
    assert index.match(A).held == {"two": 40}
    index.insert("one", A[:20])
    assert index.match(A).held == {"one": 20, "two": 40}
    for _ in range(30):
        index.correct("one", 1280, 1280)
    assert index.trust("one", 1280) > 0.99


def test_balancer_fault_23_hits_that_an_engine_cannot_give_are_worth_nothing() -> None:
    """Its blocks have 784 tokens, 240 are shared: no bonus, and others keep theirs."""
    index = PrefixIndex()
    for _ in range(30):
        index.insert("one", A[:4])
        index.correct("one", 240, 0)
    assert int(240 * index.trust("one", 240)) == 0
    assert index.trust("two", 240) == 1.0
    index.correct("never there", 240, 0)


# ---- memory ------------------------------------------------------------------------------------


def test_balancer_fault_18_memory_is_flat_over_unique_prompts() -> None:
    index = PrefixIndex(default_blocks=500)
    sizes = []
    for number in range(3000):
        index.insert(f"replica-{number % 4}", tails((), 1, size=5)[0])
        if number % 1000 == 999:
            sizes.append(index.stats().approx_bytes)
    stats = index.stats()
    assert all(490 <= held <= 500 for held in stats.blocks.values())
    assert stats.distinct == sum(stats.blocks.values())
    assert max(sizes) < 1.5 * min(sizes)


def test_balancer_fault_18_after_eviction_what_is_in_use_still_hits() -> None:
    index = PrefixIndex(default_blocks=300)
    hits = 0
    for _ in range(500):
        index.insert("one", tails((), 1, size=5)[0])
        hits += index.match(A).held.get("one", 0) == 40
        index.insert("one", A)
    assert hits == 499
    assert index.stats().hit_share > 0.99


# ---- properties --------------------------------------------------------------------------------

PATHS = st.lists(st.integers(0, 2), max_size=8)
NAMES = st.sampled_from("abcd")


def chained(path: list[int]) -> tuple[int, ...]:
    """Blocks whose hashes tell all that came before, as real ones do."""
    made: list[int] = []
    for step in path:
        made.append(random.Random(f"{made[-1:]}{step}").getrandbits(64))
    return tuple(made)


class Index(RuleBasedStateMachine):
    """The index beside a plain model of it: per replica a list, last used last."""

    room = 12

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(default_blocks=self.room)
        self.model: dict[str, list[int]] = {}
        self.prompts: list[tuple[int, ...]] = []

    @rule(name=NAMES, path=PATHS)
    def insert(self, name: str, path: list[int]) -> None:
        blocks = chained(path)
        self.prompts.append(blocks)
        self.index.insert(name, blocks)
        held = self.model.setdefault(name, [])
        for block in reversed(blocks):
            if block in held:
                held.remove(block)
            held.append(block)
        del held[: -self.room]

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.index.remove(name)
        self.model.pop(name, None)

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        self.index.forget(name)
        self.model.pop(name, None)

    @invariant()
    def matches_are_the_model_s(self) -> None:
        for blocks in self.prompts[-5:]:
            expected = {}
            for name, held in self.model.items():
                depth = next((i for i, b in enumerate(blocks) if b not in held), len(blocks))
                if depth:
                    expected[name] = depth
            match = self.index.match(blocks)
            assert match.held == expected
            assert match.common <= max(match.held.values(), default=0) <= len(blocks)


Index.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestIndex = Index.TestCase


@given(st.lists(st.tuples(NAMES, PATHS), max_size=30), st.permutations("abcd"))
def test_the_names_and_order_of_replicas_mean_nothing(
    given_: list[tuple[str, list[int]]], order: list[str]
) -> None:
    renamed = dict(zip("abcd", order, strict=True))
    one, other = PrefixIndex(), PrefixIndex()
    for name in order:
        other.resize(name, 40_000)
    for name, path in given_:
        one.insert(name, chained(path))
        other.insert(renamed[name], chained(path))
    for _, path in given_:
        found, mapped = one.match(chained(path)), other.match(chained(path))
        assert {renamed[name]: held for name, held in found.held.items()} == mapped.held
        assert found.common == mapped.common


@given(st.lists(PATHS, min_size=1, max_size=12))
def test_a_match_is_never_longer_than_what_was_inserted(paths: list[list[int]]) -> None:
    index = PrefixIndex()
    for before, now in pairwise([[], *paths]):
        index.insert("one", chained(before))
        held = index.match(chained(now)).held.get("one", 0)
        seen = [chained(path) for path in paths]
        assert held <= max(
            sum(1 for a, b in zip(blocks, chained(now), strict=False) if a == b) for blocks in seen
        )


def test_a_head_is_common_too_where_tails_are_shorter_than_a_block() -> None:
    index = PrefixIndex()
    for number in range(3):
        index.insert("one", A[:8], tail=1000 + number)
        index.insert("one", A[:8], tail=1000 + number)
    assert index.match(A[:8]).common == 0
    index.insert("one", A[:8], tail=2000)
    assert index.match(A[:8]).common == 8
    assert index.match((*A[:8], *B[:2])).held == {"one": 8}
