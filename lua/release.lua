-- release.lua: leave the lock or a place; at depth 0 free it, and wake those waiters that can enter now. Without an
--   owner: only wake.
-- KEYS[1] lock      hash, see lua/README.md
-- KEYS[2] token     the last token of this key, kept for a while after a release
-- KEYS[3] waiters   sorted set of the waiters, by when they first found the lock busy
-- KEYS[4] woken     the waiter whose turn it is
-- KEYS[5] done      given when the owner's task has ended: tells other deliveries of its message, if there are any
-- KEYS[6] unacked   given when the message was published again: its earlier deliveries that are not acknowledged
-- ARGV[1] owner     the caller, delivery:task-id; empty: the caller holds nothing
-- ARGV[2] fence     the token of the ownership, or its attempt if nothing has run under it; empty: any of this owner
-- ARGV[3] early     1: not yet if the message has other deliveries, because how the task ends is not known yet
-- ARGV[4] depth     the owner's depth afterwards
-- ARGV[5] successor what keeps the key, queued:task-id or rest:task-id; empty: the key becomes free
-- ARGV[6] lease     how long the successor keeps it, in milliseconds
-- ARGV[7] waiter    a waiter that does not use its turn; empty: none
-- A place has no successor: it rests if it was taken for longer, see lua/acquire_place.lua, unless nothing has run.
-- All but the first two may be left out: the lock becomes free. Most requests do, because each argument costs time.
-- returns 1 released · 2 too early, still held · 0 the lock did not exist · -1 another owner or ownership holds it
--   · 3 as 1 or 0, but the first waiters are gone: wake again
-- How long, in milliseconds, the last token is remembered; how long redelivered messages can learn that their task has
-- ended; and how long a woken waiter may take to acquire.
local TOKEN_MEMORY, DONE_MEMORY, TRUST = 60000, 3600000, 1000

local depth, successor = ARGV[4] or '0', ARGV[5] or ''

local function is_heard(waiter, what)
  -- The prefix, before the hash tag, begins the names of the listeners' channels too.
  local channel = string.match(KEYS[1], '^[^{]*') .. 'wake:' .. string.match(waiter, '^[^:/]*')
  local time = redis.call('TIME') -- tells two messages with the same text apart
  local said = what .. ' ' .. time[1] .. '.' .. time[2] .. ' ' .. KEYS[1] .. ' ' .. waiter
  return redis.call('PUBLISH', channel, said) > 0
end

local function limit_of(waiter)
  return math.max(1, tonumber(string.match(waiter, '^[^:/]*/(%d+):') or 1))
end

local function tell_end(is_redelivered)
  redis.call('HDEL', KEYS[1], '') -- a full server refuses what grows only as a script's first write
  redis.call('SET', KEYS[5], is_redelivered and '1' or '0', 'PX', DONE_MEMORY)
end

-- No subscriber means that the waiter's process is gone: remove it. At most so many in one call.
local patience = 100

local function notify_next()
  local first = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
  while first and patience > 0 and not is_heard(first, 'next') do
    patience = patience - 1
    redis.call('ZREM', KEYS[3], first)
    first = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
  end
end

local function microseconds_now()
  local clock = redis.call('TIME')
  return clock[1] * 1000000 + clock[2]
end

-- Leaves a place. Returns the reply, or nil if a place has become free.
local function leave_place(record)
  local lease, slot, limit, others = string.match(record, '^(%d+) (%d+) (%d+) %d+( .*)$')
  local token, rest, is_redelivered, attempt =
    string.match(record, '^%d+ %d+ %d+ %d+ (%d+) (%d+) %d+ ([01]) (%S*) ')
  local now = microseconds_now()
  if not token or (ARGV[2] ~= '' and ARGV[2] ~= token and ARGV[2] ~= attempt) then
    return -1
  end
  if tonumber(lease) <= now then
    redis.call('HDEL', KEYS[1], ARGV[1])
    return 0
  end
  if depth ~= '0' then
    redis.call('HDEL', KEYS[1], '') -- as above
    redis.call('HSET', KEYS[1], ARGV[1], (string.gsub(record, '^(%d+ %d+ %d+) %d+', '%1 ' .. depth)))
    return 1
  end
  local has_others = is_redelivered == '1' or (KEYS[6] and redis.call('EXISTS', KEYS[6]) == 1)
  if has_others and ARGV[3] == '1' then
    return 2
  end
  if has_others and KEYS[5] then
    tell_end(is_redelivered == '1')
  end
  redis.call('HDEL', KEYS[1], ARGV[1])
  local is_unused = ARGV[2] ~= '' and ARGV[2] == attempt
  if tonumber(rest) > now and not is_unused and string.sub(ARGV[1], 1, 5) ~= 'rest.' then
    -- One task may rest in several places, after its retries.
    local field = 'rest.' .. slot .. string.match(ARGV[1], ':.*')
    redis.call('HSET', KEYS[1], field, rest .. ' ' .. slot .. ' ' .. limit .. ' 1' .. others)
    if redis.call('PTTL', KEYS[1]) < 0 then -- the only place: without it, the hash and its expiry were gone
      redis.call('PEXPIRE', KEYS[1], math.ceil((rest - now) / 1000))
    end
    notify_next() -- the next waiter learns how long the place rests
    return 1
  end
  local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '', '^%d+$') or '0')
  redis.call('SET', KEYS[2], last > tonumber(token) and last < 2 ^ 53 and string.format('%.0f', last) or token,
    'PX', TOKEN_MEMORY)
end

local held = {}
if ARGV[1] ~= '' then -- a foreign hash may have a field without a name
  held = redis.call('HMGET', KEYS[1], ARGV[1], '@token', '@redelivered', '@attempt')
end
if held[1] and not held[2] then
  local reply = leave_place(held[1])
  if reply then
    return reply
  end
elseif held[1] and (ARGV[2] == '' or ARGV[2] == held[2] or ARGV[2] == held[4]) then
  if depth ~= '0' then
    redis.call('HDEL', KEYS[1], '') -- as above
    redis.call('HSET', KEYS[1], ARGV[1], depth)
    return 1
  end
  local has_others = held[3] or (KEYS[6] and redis.call('EXISTS', KEYS[6]) == 1)
  if has_others and ARGV[3] == '1' then
    return 2
  end
  if has_others and KEYS[5] then
    tell_end(held[3])
  end
  if successor ~= '' then
    redis.call('HDEL', KEYS[1], ARGV[1], '@redelivered', '@replaced', '@told')
    redis.call('HSET', KEYS[1], successor, 1)
    redis.call('PEXPIRE', KEYS[1], ARGV[6])
    -- A retry of the same task that already waits takes over. It came last, so it is near the end of the line.
    for _, waiter in ipairs(redis.call('ZREVRANGE', KEYS[3], 0, 99)) do
      if 'queued:' .. (string.match(waiter, '^[^:]*:[^:]*:(.*)') or '') == successor then
        redis.call('ZREM', KEYS[3], waiter)
        is_heard(waiter, 'turn')
      end
    end
    notify_next() -- the next waiter learns how long the successor keeps the key
    return 1
  end
  redis.call('DEL', KEYS[1])
  redis.call('SET', KEYS[2], held[2], 'PX', TOKEN_MEMORY)
elseif redis.call('EXISTS', KEYS[1]) == 1 and (ARGV[1] ~= '' or redis.call('HEXISTS', KEYS[1], '@token') == 1) then
  return -1
end

-- Most releases find no line. One that frees nothing goes on: a replica must refuse it, not answer.
if held[1] and redis.call('EXISTS', KEYS[3], KEYS[4]) == 0 then
  return 1
end
local woken = redis.call('GET', KEYS[4])
if woken and woken ~= ARGV[7] then
  return held[1] and 1 or 0
end
redis.call('DEL', KEYS[4])
if (ARGV[7] or '') ~= '' then
  redis.call('HDEL', KEYS[1], 'turn:' .. ARGV[7])
end

-- The places that are taken, and the smallest limit of their owners. A field of another program takes all places.
local now, taken, lowest = microseconds_now(), 0, math.huge
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local lease, limit = string.match(fields[i + 1], '^(%d+) %d+ (%d+) ')
  if lease and tonumber(lease) <= now then
    redis.call('HDEL', KEYS[1], fields[i])
  else
    taken, lowest = taken + 1, math.min(lowest, limit or 1)
  end
end

-- A waiter is woken only if there is a place for it, which then is kept for it.
local is_any_woken = false
while patience > 0 do
  local first = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
  if not first or taken >= math.min(lowest, limit_of(first)) then
    break
  end
  redis.call('ZREM', KEYS[3], first)
  patience = patience - 1
  if is_heard(first, 'turn') then
    -- One that missed its turn and asked again still has the place that is kept for it: count it once.
    local had_place = redis.call('HEXISTS', KEYS[1], 'turn:' .. first)
    is_any_woken, taken, lowest = true, taken + 1 - had_place, math.min(lowest, limit_of(first))
    if limit_of(first) == 1 then
      redis.call('SET', KEYS[4], first, 'PX', TRUST)
    else
      local ends = string.format('%.0f', now + TRUST * 1000)
      redis.call('HSET', KEYS[1], 'turn:' .. first, ends .. ' 0 ' .. limit_of(first) .. ' 0 0 0 0 0  \n')
      if redis.call('PTTL', KEYS[1]) < TRUST then
        redis.call('PEXPIRE', KEYS[1], TRUST)
      end
    end
  end
end
if patience == 0 then
  return 3
end
if is_any_woken then
  notify_next() -- it looks whether the woken waiters have come
end
return held[1] and 1 or 0
