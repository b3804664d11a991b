"""What gateways share in Redis: the keys, the one script, and how things are packed.

Every key begins with `tierway:{NAME}:`, all of them in one hash slot of a cluster, since one
script works on several. NAME is `state.name`.

    …:counts:REPLICA   hash    gateway -> when its row expires, and its counts
    …:gateways         zset    gateway -> when it expires
    …:placed           stream  which replica was sent which blocks, of the last minutes

A gateway's row, its fields of the hashes of all replicas, holds absolute values and is written
by it alone: nothing is added up, so nothing can leak or become negative, and a Redis that lost
everything knows it again after one refresh. Times are milliseconds of the server's clock; what
has expired does not count, and whoever meets it deletes it.

`SYNC` writes the gateway's counts for the replicas named, and answers with the sums of all
others. The asks that go with it are placed one after the other: each takes the least price
(policies/sharing.py) with what is in flight then, and is added to the gateway's row. Reads are
one HGETALL for each replica named, however many there are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from tierway.policies.sharing import Offer
from tierway.policies.types import Counts

SYNC = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local gateway, ttl = ARGV[1], tonumber(ARGV[2])
local beside, own, found, living = {}, {}, {}, 0
for at = 1, #KEYS - 1 do
  local sum, row = {0, 0, 0, 0, 0}, redis.call('HGETALL', KEYS[at + 1])
  for place = 1, #row, 2 do
    if row[place] == gateway then
      found[at] = row[place + 1]
    else
      local one = {struct.unpack('>dI4I4I4I4I4', row[place + 1])}
      if one[1] > now then
        for item = 1, 5 do sum[item] = sum[item] + one[item + 1] end
      else
        redis.call('HDEL', KEYS[at + 1], row[place])
      end
    end
  end
  beside[at], own[at] = sum, {struct.unpack('>I4I4I4I4I4', ARGV[3], 20 * at - 19)}
end
local places = {}
for ask = 4, #ARGV do
  local draw, count, byte = struct.unpack('>dI2', ARGV[ask])
  local first, best, least, work = math.floor(draw * count)
  for place = 0, count - 1 do
    local o
    o, byte = {struct.unpack('>I2ddddI4I4I4I4I4I4I4', ARGV[ask], byte)}, byte + 62
    local there, mine = beside[o[1]], own[o[1]]
    local price = o[2] + o[3] * (there[1] + mine[1] - o[6])
      + o[4] * (there[3] + mine[3] - o[7]) + o[5] * (there[4] + mine[4] - o[8])
    local key = {math.floor(price * 1e9 + 0.5), (place - first) % count}
    if not best or key[1] < least[1] or (key[1] == least[1] and key[2] < least[2]) then
      best, least, work = place, key, o
    end
  end
  local mine = own[work[1]]
  mine[1] = mine[1] + 1
  for item = 2, 5 do mine[item] = mine[item] + work[item + 7] end
  places[#places + 1] = best
end
for at = 1, #KEYS - 1 do
  local mine, key = own[at], KEYS[at + 1]
  if ttl == 0 or mine[1] + mine[2] + mine[3] + mine[4] + mine[5] == 0 then
    if found[at] then redis.call('HDEL', key, gateway) end
  else
    local packed = struct.pack('>I4I4I4I4I4', unpack(mine))
    if not found[at] or string.sub(found[at], 9) ~= packed
      or struct.unpack('>d', found[at]) < now + ttl / 2 then
      redis.call('HSET', key, gateway, struct.pack('>d', now + ttl) .. packed)
      redis.call('PEXPIRE', key, ttl)
    end
  end
end
if ttl == 0 then
  redis.call('ZREM', KEYS[1], gateway)
elseif #ARGV == 3 then
  redis.call('ZADD', KEYS[1], now + ttl, gateway)
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
  redis.call('PEXPIRE', KEYS[1], ttl)
  living = redis.call('ZCARD', KEYS[1])
end
local sums = {}
for at = 1, #beside do sums[at] = struct.pack('>I4I4I4I4I4', unpack(beside[at])) end
return {places, table.concat(sums), living}
"""
"""KEYS gateways, counts…; ARGV gateway, ttl_ms (0: leaves), own counts, asks… -> places, sums of
the others, gateways alive (0 with asks)."""

PLACE = """
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'from', ARGV[3], 'of', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""
"""KEYS placed; ARGV entries kept, ttl_ms, gateway, placements (pack_placements)."""

_COUNTS = struct.Struct(">5I")
_ASK = struct.Struct(">dH")
_OFFER = struct.Struct(">H4d7I")
_LENGTHS = struct.Struct(">HH")
_MOST = 2**32 - 1


class Keys:
    """The keys of the gateways that share under one name."""

    def __init__(self, name: str) -> None:
        self._prefix = f"tierway:{{{name}}}"
        self.gateways = f"{self._prefix}:gateways"
        self.placed = f"{self._prefix}:placed"

    def counts(self, replica: str) -> str:
        return f"{self._prefix}:counts:{replica}"


def pack_counts(counts: Iterable[Counts]) -> bytes:
    return b"".join(
        _COUNTS.pack(
            _fit(one.requests),
            _fit(one.prompt_tokens),
            _fit(one.prefill_tokens),
            _fit(one.output_tokens),
            _fit(one.context_tokens),
        )
        for one in counts
    )


def unpack_counts(packed: bytes) -> list[Counts]:
    return [Counts(*fields) for fields in _COUNTS.iter_unpack(packed)]


def pack_ask(offers: Sequence[Offer], draw: float, places: Sequence[int]) -> bytes:
    """`places` are those of the offers' replicas among the keys of counts, from 1."""
    return _ASK.pack(draw, len(offers)) + b"".join(map(_pack_offer, offers, places))


def _pack_offer(offer: Offer, place: int) -> bytes:
    cost, known, work = offer.cost, offer.known, offer.work
    return _OFFER.pack(
        place,
        cost.base_s,
        cost.request_s,
        cost.prefill_token_s,
        cost.output_token_s,
        *map(_fit, (known.requests, known.prefill_tokens, known.output_tokens)),
        *map(_fit, (work.prompt_tokens, work.prefill_tokens, work.output_tokens)),
        _fit(work.context_tokens),
    )


def _fit(number: int) -> int:
    """A count as 32 bits hold it."""
    return min(max(0, number), _MOST)


def pack_placements(placed: Iterable[tuple[str, Sequence[int]]]) -> bytes:
    """(replica, blocks) in turn: both lengths, the name, eight bytes a block."""
    parts = []
    for replica, blocks in placed:
        name = replica.encode()
        parts += [
            _LENGTHS.pack(len(name), len(blocks)),
            name,
            struct.pack(f">{len(blocks)}Q", *blocks),
        ]
    return b"".join(parts)


def unpack_placements(packed: bytes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Raises struct.error or ValueError for what pack_placements did not make."""
    at = 0
    while at < len(packed):
        name, blocks = _LENGTHS.unpack_from(packed, at)
        begin = at + _LENGTHS.size + name
        replica = packed[at + _LENGTHS.size : begin].decode()
        yield replica, struct.unpack_from(f">{blocks}Q", packed, begin)
        at = begin + 8 * blocks
