"""Each rival's rule, on the smallest fleet that shows it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import pytest

from tierway.bench.balance_fleet import fleet_profile
from tierway.bench.engine import Engine, Work
from tierway.bench.loads import Asked, SessionText
from tierway.bench.rivals import (
    RIVALS,
    BoundedPrefixHash,
    CacheAware,
    Gauges,
    Known,
    OverlapCost,
    Seen,
    SessionHash,
    WeightedScorers,
    XorPrefix,
)
from tierway.bench.rivals_index import BlockLru, Ring
from tierway.bench.rivals_oracle import Oracle, oracle, pooled

DRAW = random.Random(0)


def _known(count: int) -> list[Known]:
    engines = [Engine(fleet_profile("8b", "a100")) for _ in range(count)]
    return [Known(partial(_same, engine), BlockLru(1000)) for engine in engines]


def _same(engine: Engine) -> Engine:
    return engine


def _seen(session: int = 1, tokens: int = 640, segments: Sequence[int] = ()) -> Seen:
    asked = Asked(1, str(session), tokens, 10, SessionText(session), tokens, tuple(segments))
    return Seen(asked, asked.blocks())


def _computed(known: Known, seen: Seen) -> None:
    """Lets the engine compute a prompt, so that its cache holds it."""
    engine = known.engine()
    engine.submit(Work(seen.asked.prompt_tokens, 1, seen.asked.keys(16)))
    engine.advance()


def test_the_index_keeps_heads_longer_than_tails() -> None:
    index = BlockLru(4)
    index.insert((1, 2, 3))
    index.insert((1, 4, 5))
    assert index.match((1, 2, 3)) == 2
    assert index.match((1, 4, 5)) == 3
    assert index.match((9,)) == 0
    assert len(index) == 4


def test_a_ring_walks_every_replica_once_and_spreads_keys() -> None:
    ring = Ring(4)
    firsts = [next(ring.walk(f"key {n}")) for n in range(400)]
    assert sorted(ring.walk("key")) == [0, 1, 2, 3]
    assert all(firsts.count(replica) > 40 for replica in range(4))


def test_a_session_stays() -> None:
    rule, known = SessionHash(3), _known(3)
    assert len({rule.choose(_seen(tokens=n), known, DRAW) for n in (64, 640)}) == 1


def test_a_prefix_leaves_a_replica_above_the_bound() -> None:
    rule, known = BoundedPrefixHash(4), _known(4)
    home = rule.choose(_seen(), known, DRAW)
    known[home].requests = 2
    assert rule.choose(_seen(), known, DRAW) != home
    for one in known:
        one.requests = 2
    assert rule.choose(_seen(), known, DRAW) == home


def test_cache_aware_follows_matches_until_loads_are_unequal() -> None:
    rule, known = CacheAware(0.5, 4, 1.1), _known(3)
    known[1].index.insert(_seen().blocks)
    known[1].requests = 4
    assert rule.choose(_seen(), known, DRAW) == 1
    assert rule.choose(_seen(session=2), known, DRAW) == 0
    known[1].requests = 5
    assert rule.choose(_seen(), known, DRAW) == 0


def test_cache_aware_as_it_was_goes_to_the_smallest_tree() -> None:
    rule, known = CacheAware(0.5, 32, 1.1, smallest_tree=True), _known(2)
    known[0].index.insert(_seen(session=5).blocks)
    known[1].requests = 9
    assert rule.choose(_seen(), known, DRAW) == 1


def test_weighted_scorers_add_queue_memory_and_prefix() -> None:
    rule, known = WeightedScorers(fresh=False), _known(2)
    known[0].index.insert(_seen().blocks)
    known[0].gauges = Gauges(waiting=3, kv_usage=0.4)
    assert rule.choose(_seen(), known, DRAW) == 0
    known[0].gauges = Gauges(waiting=3, kv_usage=0.6)
    assert rule.choose(_seen(), known, DRAW) == 1
    assert WeightedScorers(fresh=True).choose(_seen(), known, DRAW) == 0


def test_overlap_weighs_what_is_cached_against_what_is_running() -> None:
    rule, known, seen = OverlapCost(), _known(2), _seen()
    _computed(known[0], seen)
    assert rule.choose(seen, known, DRAW) == 0
    known[0].context_tokens = 700
    assert rule.choose(seen, known, DRAW) == 1


def test_xor_keys_know_no_order_and_cancel_repeats() -> None:
    rule, known = XorPrefix(), _known(2)
    known[1].requests = 1
    assert rule.choose(_seen(segments=(5, 6)), known, DRAW) == 0
    known[0].requests = 9
    assert rule.choose(_seen(segments=(5, 6, 7)), known, DRAW) == 0
    assert rule.choose(_seen(segments=(6,)), known, DRAW) == 1
    repeated = XorPrefix()
    first = repeated.choose(_seen(segments=(5, 5)), known, DRAW)
    known[first].requests = 99
    assert repeated.choose(_seen(segments=(5, 5, 8, 8)), known, DRAW) == first


def test_the_oracle_sees_the_cache_itself_and_the_queue() -> None:
    known, seen = _known(2), _seen(tokens=6400)
    rule = Oracle(3.0, (1e-4, 1e-4))
    _computed(known[1], seen)
    assert rule.choose(seen, known, DRAW) == 1
    known[1].pending_tokens = 30_000
    assert rule.choose(seen, known, DRAW) == 0
    known[1].pending_tokens = 0
    known[1].context_tokens = 2 * known[1].engine().profile.kv_capacity_tokens
    assert rule.choose(seen, known, DRAW) == 0


def test_the_oracle_prefers_the_faster() -> None:
    profiles = [fleet_profile("8b", gpu) for gpu in ("a10", "h100")]
    known = [Known(partial(_same, Engine(made)), BlockLru(9)) for made in profiles]
    assert oracle("oracle_3", profiles).choose(_seen(), known, DRAW) == 1


def test_a_pool_has_the_memory_of_all() -> None:
    profiles = [fleet_profile("8b", gpu) for gpu in ("a10", "h100")]
    made = pooled(profiles)
    capacity = sum(one.kv_capacity_tokens for one in profiles)
    assert made.kv_capacity_tokens == pytest.approx(capacity, abs=16)
    assert made.sequences == 2 * profiles[0].sequences


@pytest.mark.parametrize("name", sorted(RIVALS))
def test_every_rival_chooses_a_replica(name: str) -> None:
    rule, known = RIVALS[name](3), _known(3)
    for session in range(20):
        assert rule.choose(_seen(session, segments=(session,)), known, DRAW) in range(3)
    blank = Seen(Asked(1, "alone", 50, 5), ())
    assert rule.choose(blank, known, DRAW) in range(3)
