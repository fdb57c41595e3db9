-- acquire.lua: take the lock, re-enter it, or take a place in line.
-- KEYS[1] lock     hash, see lua/README.md
-- KEYS[2] token    the last token of this key, kept for a while after a release
-- KEYS[3] waiters  sorted set of the waiters, by when they first found the lock busy
-- KEYS[4] woken    the waiter whose turn it is
-- ARGV[1] owner    the caller, delivery:task-id
-- ARGV[2] worker   the caller's worker
-- ARGV[3] ttl      lease in milliseconds; a longer lease that is already there is kept
-- ARGV[4] task     the task's name, shown to people
-- ARGV[5] attempt  names this ownership; a repeated request carries the same name, a later one a larger number
-- ARGV[6] deadline the server's time in microseconds at which the caller gives up; 0: the caller does not know it
-- ARGV[7] depth    the depth the owner wants: 1 takes the lock, more re-enters it
-- ARGV[8] waiter   listener:delivery:task-id: if the lock is busy, take this place in line; empty: no place
-- ARGV[9] since    when the caller first found the lock busy, in microseconds; 0: now
-- ARGV[10] keep    how long the place is kept unless the waiter asks again, in milliseconds
-- ARGV[11] places  1: the caller wants one of several places: it does not take a key that is free as a whole
-- The last five may be left out: depth 1, no place. Most requests do, because each argument costs time.
-- A task takes over what queued:task-id has held since it was published.
-- A holder that is another delivery of the caller's message learns that it was redelivered, see lua/redelivery.lua.
-- returns {1, time, token} taken · {0, time, ms until it may be free, owner, worker, task} busy
--   · {-1, time} not held any more · {-2, time} too late · {2, time} free, but the first waiter must be woken
--   · {3, time} the key has several places, and some are taken, or the caller wants one: ask lua/acquire_place.lua
local id = string.match(ARGV[1], '^[^:]+:(.*)')
if not id then
  return redis.error_reply('ERR the owner must be delivery:task-id')
end
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
if now > tonumber(ARGV[6]) and ARGV[6] ~= '0' then
  return {-2, now}
end

local depth, waiter, since = ARGV[7] or '1', ARGV[8] or '', ARGV[9] or '0'

-- A token that another program wrote over is worth nothing.
local function token_in(text)
  local token = tonumber(string.match(text or '', '^%d+$') or '0')
  return token < 2 ^ 53 and token or 0
end

-- An owner counts its attempts.
local function is_older(attempt, other)
  local number, other_number = string.match(attempt, '^%d+$'), string.match(other or '', '^%d+$')
  return number and other_number and tonumber(number) < tonumber(other_number)
end

local function take_place()
  if waiter ~= '' then
    redis.call('ZREM', KEYS[3], '') -- a full server refuses what grows only as a script's first write
    redis.call('ZADD', KEYS[3], 'NX', since ~= '0' and since or string.format('%.0f', now), waiter)
    if redis.call('PTTL', KEYS[3]) < tonumber(ARGV[10]) then
      redis.call('PEXPIRE', KEYS[3], ARGV[10])
    end
  end
end

-- Most acquires find neither a holder nor a line.
local is_quiet = redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[4]) == 0
local holder, has_whole_key
if not is_quiet then
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, 1) ~= '@' then
      holder = field
    else
      has_whole_key = true
    end
  end
  if holder and not has_whole_key then
    return {3, now}
  end
end

local last, is_mine = 0, false
if holder == ARGV[1] then
  local held = redis.call('HMGET', KEYS[1], '@worker', '@token', '@attempt')
  is_mine = held[1] == ARGV[2]
  if is_mine and held[3] == ARGV[5] then
    redis.call('HDEL', KEYS[1], '') -- as above
    redis.call('HSET', KEYS[1], holder, depth)
    if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
      redis.call('PEXPIRE', KEYS[1], ARGV[3])
    end
    return {1, now, token_in(held[2])}
  end
  if is_mine and is_older(ARGV[5], held[3]) then
    return {-2, now} -- the caller has given up this request, and has asked again since
  end
  last = token_in(held[2]) -- the owner gave up an earlier ownership, whose release has not arrived yet
elseif holder == 'queued:' .. id and depth == '1' then
  is_mine = true
  last = token_in(redis.call('HGET', KEYS[1], '@token'))
end
if holder and not is_mine then
  if string.match(holder, '^[^.:]*(.*)') == string.match(ARGV[1], '^[^.:]*(.*)') then
    redis.call('HDEL', KEYS[1], '') -- as above
    redis.call('HSET', KEYS[1], '@redelivered', 1)
  end
  take_place()
  local shown = redis.call('HMGET', KEYS[1], '@worker', '@task')
  return {0, now, redis.call('PTTL', KEYS[1]), holder, shown[1], shown[2]}
end
if depth ~= '1' then
  return {-1, now}
end
if not holder and ARGV[11] == '1' then
  return {3, now}
end

-- The line has precedence over newcomers: only the waiter whose turn it is gets in.
if not is_mine and not is_quiet then
  local turn = redis.call('GET', KEYS[4])
  if not turn then
    local first = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
    if since == '0' or tonumber(since) > tonumber(first[2] or '0') then
      turn = first[1]
    end
  end
  if turn and string.match(turn, '^[^:]*:(.*)') ~= ARGV[1] then
    take_place()
    local left = redis.call('PTTL', KEYS[4])
    if left < 0 then
      return {2, now}
    end
    return {0, now, left, string.match(turn, '^[^:]*:(.*)') or turn, '', ''}
  end
  redis.call('DEL', KEYS[4])
  if waiter ~= '' then
    redis.call('ZREM', KEYS[3], waiter)
  end
end

-- The floor is the server's clock, so a token that Redis has forgotten is still smaller than the next one.
last = math.max(last, token_in(redis.call('GETDEL', KEYS[2])))
local token = math.max(now, last + 1)
local written = string.format('%.0f', token)
if last >= now then
  -- The clock went back: remember the token until the clock has caught up.
  redis.call('SET', KEYS[2], written, 'PX', math.ceil((last - now) / 1000) + ARGV[3])
end
if holder then
  redis.call('DEL', KEYS[1])
end
redis.call(
  'HSET', KEYS[1], ARGV[1], 1, '@worker', ARGV[2], '@token', written, '@attempt', ARGV[5],
  '@since', clock[1], '@task', ARGV[4]
)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {1, now, token}
