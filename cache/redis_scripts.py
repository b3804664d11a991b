"""What Redis does for the cache in one step: the scripts, and the keys they work on.

Every key begins with `tierway:cache:v1:NAME`. The number is that of the layout: releases with
another one share the server without meeting. Two sorts of keys:

    …:NAME:e:ID              one entry, a hash (redis_codec.py) with a time to live
    …:{NAME}:meta …          the ledger, in one hash slot of a cluster, so that a script may
                             change all of it at once. None of these keys expires.

    meta     hash    sequence, horizon (store.py), bytes, note_sequence
    log      zset    entry id -> sequence number of its one line
    live     hash    entry id -> row: digest, partition, bytes, owner (redis_codec.py)
    exact    hash    digest -> entry id
    expiry   zset    entry id -> when it expires
    used     zset    entry id -> when it was last used
    trash    hash    entry id -> row, of deleted entries whose text may still be there
    notes    stream  the journal; note_expiry: zset, sequence number -> when it expires;
                     note_count: hash, how many of each kind and tenant (a JSON list)

Sequence numbers are microseconds of the server's clock, or one more than the last: a ledger
that was lost and begun anew, or that fell back to an older state, goes on above every number
it ever gave, so its followers find that out.
"""

from __future__ import annotations

PREFIX = "tierway:cache:v1"
LEDGER = ("meta", "log", "live", "exact", "expiry", "used", "trash")
JOURNAL = ("meta", "notes", "note_expiry", "note_count")

_NUMBER = """
local function number(field)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('HGET', KEYS[1], field))
  if not last then
    last = now
    if field == 'sequence' then
      redis.call('HSET', KEYS[1], 'horizon', string.format('%.0f', now))
    end
  end
  local new = string.format('%.0f', math.max(last + 1, now))
  redis.call('HSET', KEYS[1], field, new)
  return new
end
"""

_BURY = (
    _NUMBER
    + """
local meta, log, live, exact, expiry, used, trash = unpack(KEYS)
local function unlist(id, row)
  local digest = string.sub(row, 1, 16)
  if redis.call('HGET', exact, digest) == id then redis.call('HDEL', exact, digest) end
  redis.call('HINCRBY', meta, 'bytes', -(struct.unpack('>I4', row, 33)))
end
local function bury(id, gone)
  local row = redis.call('HGET', live, id)
  if not row then return end
  unlist(id, row)
  redis.call('HDEL', live, id)
  redis.call('ZREM', expiry, id)
  redis.call('ZREM', used, id)
  redis.call('ZADD', log, number('sequence'), id)
  redis.call('HSET', trash, id, row)
  table.insert(gone, id)
  table.insert(gone, row)
end
"""
)

PUT = (
    _BURY
    + """
local id, row, expires_at, used_at = unpack(ARGV)
local digest, gone = string.sub(row, 1, 16), {}
local other = redis.call('HGET', exact, digest)
if other and other ~= id then bury(other, gone) end
local same = redis.call('HGET', live, id)
if same then unlist(id, same) end
redis.call('HSET', live, id, row)
redis.call('HSET', exact, digest, id)
redis.call('ZADD', expiry, expires_at, id)
redis.call('ZADD', used, used_at, id)
redis.call('HINCRBY', meta, 'bytes', (struct.unpack('>I4', row, 33)))
redis.call('HDEL', trash, id)
local sequence = number('sequence')
redis.call('ZADD', log, sequence, id)
return {sequence, gone}
"""
)
"""id, row, expires_at, used_at -> the line's number, and [id, row, …] of what it replaced."""

BURY = (
    _BURY
    + """
local gone = {}
for _, id in ipairs(ARGV) do bury(id, gone) end
return gone
"""
)
"""ids -> [id, row, …] of those that lived."""

BURY_LOST = (
    _BURY
    + """
local gone = {}
for at = 1, #ARGV, 2 do
  if redis.call('ZSCORE', log, ARGV[at]) == ARGV[at + 1] then bury(ARGV[at], gone) end
end
return gone
"""
)
"""[id, sequence, …] -> [id, row, …]: buries those whose line is still that one."""

BURY_EXPIRED = (
    _BURY
    + """
local gone = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])) do
  bury(id, gone)
end
return gone
"""
)
"""now_at, limit -> [id, row, …]"""

SHRINK = (
    _BURY
    + """
local gone, most = {}, tonumber(ARGV[1])
for _, id in ipairs(redis.call('ZRANGE', used, 0, ARGV[2] - 1)) do
  if tonumber(redis.call('HGET', meta, 'bytes') or 0) <= most then break end
  bury(id, gone)
end
return gone
"""
)
"""bytes, limit -> [id, row, …]: the least recently used, until the rest is no more than that."""

CUT = (
    _BURY
    + """
local living, kept = redis.call('HLEN', live), tonumber(ARGV[1])
if redis.call('ZCARD', log) - living <= math.max(living, kept) then return 0 end
local lines = redis.call('ZRANGE', log, 0, ARGV[2] - 1, 'WITHSCORES')
local horizon = lines[#lines]
redis.call('ZREMRANGEBYSCORE', log, '-inf', horizon)
for at = 1, #lines, 2 do
  if redis.call('HEXISTS', live, lines[at]) == 1 then
    redis.call('ZADD', log, number('sequence'), lines[at])
  end
end
redis.call('HSET', meta, 'horizon', horizon)
return 1
"""
)
"""tombstones kept, lines -> 1 if tombstones were too many and some of the oldest lines were
cut (dead_limit of store.py)."""

LINES = """
local meta, log, live = KEYS[1], KEYS[2], KEYS[3]
local ends = redis.call('HMGET', meta, 'horizon', 'sequence')
local lines = redis.call(
  'ZRANGEBYSCORE', log, '(' .. ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
local page = {}
for at = 1, #lines, 2 do
  table.insert(page, lines[at])
  table.insert(page, lines[at + 1])
  table.insert(page, redis.call('HEXISTS', live, lines[at]))
end
return {ends[1] or '0', ends[2] or '0', page}
"""
"""since, limit -> horizon, newest, [id, number, 1 if it lives, …]"""

NOTE = (
    _NUMBER
    + """
local sequence = number('note_sequence')
redis.call('XADD', KEYS[2], sequence .. '-0', 'kind', ARGV[1], 'tenant', ARGV[2],
  'user', ARGV[3], 'body', ARGV[4], 'at', ARGV[5], 'expires_at', ARGV[6], 'group', ARGV[7])
redis.call('ZADD', KEYS[3], ARGV[6], sequence)
redis.call('HINCRBY', KEYS[4], ARGV[7], 1)
return sequence
"""
)
"""kind, tenant, user, body, at, expires_at, group -> the note's number."""

DROP_NOTES = """
local dropped = 0
for _, sequence in ipairs(ARGV) do
  local id = sequence .. '-0'
  local found = redis.call('XRANGE', KEYS[2], id, id)
  if #found == 1 then
    local fields = found[1][2]
    for at = 1, #fields, 2 do
      if fields[at] == 'group' and redis.call('HINCRBY', KEYS[4], fields[at + 1], -1) < 1 then
        redis.call('HDEL', KEYS[4], fields[at + 1])
      end
    end
    redis.call('XDEL', KEYS[2], id)
    dropped = dropped + 1
  end
  redis.call('ZREM', KEYS[3], sequence)
end
return dropped
"""
"""sequence numbers -> how many there were."""


class Keys:
    """The keys of the cache called `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.ledger = tuple(f"{PREFIX}:{{{name}}}:{part}" for part in LEDGER)
        self.journal = tuple(f"{PREFIX}:{{{name}}}:{part}" for part in JOURNAL)

    def entry(self, entry_id: str) -> str:
        return f"{PREFIX}:{self._name}:e:{entry_id}"

    def part(self, name: str) -> str:
        """One key of the ledger or the journal."""
        return f"{PREFIX}:{{{self._name}}}:{name}"

    def vectors(self, space: str, partition: bytes) -> str:
        """The vector set of one partition; `space` stands for the encoder."""
        return f"{PREFIX}:{self._name}:v:{space}:{partition.hex()}"
