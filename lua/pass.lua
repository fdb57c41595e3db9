-- pass.lua: a woken waiter cannot run now; it keeps its place, and the turn goes to a waiter of another process.
-- KEYS[1] lock    hash, see lua/README.md
-- KEYS[2] waiters sorted set of the waiters, by when they first found the lock busy
-- KEYS[3] woken   the waiter whose turn it is
-- ARGV[1] waiter  the caller, listener:delivery:task-id
-- ARGV[2] since   when the caller first found the lock busy, in microseconds
-- ARGV[3] keep    how long its place is kept unless it asks again, in milliseconds
-- returns 1 another waiter was woken · 0 no other process has a waiter that could come
local TRUST = 1000 -- how long a woken waiter may take to acquire, in milliseconds

local listener = string.match(ARGV[1], '^([^:/]+)[^:]*:[^:]+:')
if not listener then
  return redis.error_reply('ERR the waiter must be listener:delivery:task-id')
end
redis.call('ZREM', KEYS[2], '') -- a full server refuses what grows only as a script's first write
redis.call('ZADD', KEYS[2], 'NX', ARGV[2], ARGV[1])
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
local woken = redis.call('GET', KEYS[3])
if woken and woken ~= ARGV[1] then
  return 1
end
redis.call('HDEL', KEYS[1], 'turn:' .. ARGV[1])

-- The places that are taken, and the smallest limit of their owners. One owner of the whole key takes all places.
local taken, lowest = 0, math.huge
local fields = redis.call('HGETALL', KEYS[1])
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
for i = 1, #fields, 2 do
  local lease, limit = string.match(fields[i + 1], '^(%d+) %d+ (%d+) ')
  if lease and tonumber(lease) <= now then
    redis.call('HDEL', KEYS[1], fields[i])
  else
    taken, lowest = taken + 1, math.min(lowest, limit or 1)
  end
end

local function limit_of(waiter)
  return math.max(1, tonumber(string.match(waiter, '^[^:/]*/(%d+):') or 1))
end

local function has_room(waiter)
  return taken < math.min(lowest, limit_of(waiter))
end

if not has_room(ARGV[1]) then
  return 1
end
redis.call('DEL', KEYS[3])
local rank = redis.call('ZRANK', KEYS[2], ARGV[1])
local channels = string.match(KEYS[1], '^[^{]*') .. 'wake:' -- the prefix stands before the hash tag
local tries = 20
for _, waiter in ipairs(redis.call('ZRANGE', KEYS[2], rank + 1, rank + 1000)) do
  local other = string.match(waiter, '^[^:/]*')
  if other ~= listener and has_room(waiter) and tries > 0 then
    tries = tries - 1
    local time = redis.call('TIME') -- tells two messages with the same text apart
    local said = 'turn ' .. time[1] .. '.' .. time[2] .. ' ' .. KEYS[1] .. ' ' .. waiter
    redis.call('ZREM', KEYS[2], waiter)
    if redis.call('PUBLISH', channels .. other, said) > 0 then
      if limit_of(waiter) == 1 then
        redis.call('SET', KEYS[3], waiter, 'PX', TRUST)
        return 1
      end
      local ends = string.format('%.0f', now + TRUST * 1000)
      redis.call('HSET', KEYS[1], 'turn:' .. waiter, ends .. ' 0 ' .. limit_of(waiter) .. ' 0 0 0 0 0  \n')
      if redis.call('PTTL', KEYS[1]) < TRUST then
        redis.call('PEXPIRE', KEYS[1], TRUST)
      end
      return 1
    end
  end
end
return 0
