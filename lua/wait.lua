-- wait.lua: take a place in line, or ask from there whether the first waiter can enter.
-- KEYS[1] lock    hash, see lua/README.md
-- KEYS[2] waiters sorted set of the waiters, by when they first found the lock busy
-- KEYS[3] woken   the waiter whose turn it is
-- ARGV[1] waiter  the caller, listener:delivery:task-id, or listener/limit:delivery:task-id for one of several places
-- ARGV[2] since   when it found the lock busy, in microseconds (acquire.lua tells); 0: now
-- ARGV[3] keep    how long its place is kept unless it asks again, in milliseconds
-- returns 0 there is room, and it is no waiter's turn: the caller must wake the first · -1 the caller's task has held
--   it since it was published · else milliseconds until the caller must ask again
local ASK_SOON = 1000 -- when a waiter asks again that has room, but is behind one with a lower limit, in milliseconds

local id = string.match(ARGV[1], '^[^:]+:[^:]+:(.*)')
if not id then
  return redis.error_reply('ERR the waiter must be listener:delivery:task-id')
end
local since = ARGV[2]
if since == '0' then
  local time = redis.call('TIME')
  since = string.format('%.0f', time[1] * 1000000 + time[2])
end
redis.call('ZREM', KEYS[2], '') -- a full server refuses what grows only as a script's first write
redis.call('ZADD', KEYS[2], 'NX', since, ARGV[1])
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end

if redis.call('HEXISTS', KEYS[1], 'queued:' .. id) == 1 then
  return -1
end
local fields = redis.call('HGETALL', KEYS[1])
local taken, lowest, ends = 0, math.huge, math.huge
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
for i = 1, #fields, 2 do
  local lease, limit = string.match(fields[i + 1], '^(%d+) %d+ (%d+) ')
  if not lease or tonumber(lease) >= 2 ^ 53 then -- one owner has the whole key, or another program wrote this
    return math.max(0, redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[3]))
  elseif tonumber(lease) <= now then
    redis.call('HDEL', KEYS[1], fields[i])
  else
    taken, lowest, ends = taken + 1, math.min(lowest, limit), math.min(ends, lease)
  end
end
local function has_room(waiter)
  return taken < math.min(lowest, math.max(1, tonumber(string.match(waiter, '^[^:/]*/(%d+):') or 1)))
end

if not has_room(redis.call('ZRANGE', KEYS[2], 0, 0)[1] or '') then
  local ms = math.max(1, math.ceil((ends - now) / 1000))
  -- The first waiter wants more places for itself. If it leaves the line, it wakes no other.
  return has_room(ARGV[1]) and math.min(ms, ASK_SOON) or ms
end
return math.max(0, redis.call('PTTL', KEYS[3]))
