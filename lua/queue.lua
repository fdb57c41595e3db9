-- queue.lua: a call that has a reservation is published, so it is queued now; or a run's retry is.
-- KEYS[1] pending    hash of the pending calls, see lua/README.md
-- KEYS[2] lock       hash, see lua/README.md
-- KEYS[3] waiters    sorted set of the waiters, by when they first found the lock busy
-- KEYS[4] superseded tells that a later call has taken the place of ARGV[6]
-- KEYS[5] mine       tells that a later call has taken the place of this one
-- ARGV[1] id         the task's id
-- ARGV[2] attempt    names this publication, as in lua/reserve.lua
-- ARGV[3] lease      how long the call keeps its place, in milliseconds
-- ARGV[4] limit      how many calls may be pending
-- ARGV[5] memory     how long a superseded call is remembered beyond the end of its place, in milliseconds
-- ARGV[6] older      the id of a call that may be superseded; empty: none is known
-- ARGV[7] replace    1: if there is no place, take that of the oldest call of the same task
-- ARGV[8] token      of a retry: its run holds the lock under this token, and it is queued if there is a place
-- ARGV[9] worker     of a retry: its worker
-- ARGV[10] task      of a retry: the task's name
-- The last three may be left out.
-- returns {1} queued · {2} queued, and ARGV[6] is superseded · {3, id} nothing yet: ask again with this id as ARGV[6]
--   · {-1, id} this call is superseded, because that one was made later · {0} not queued: its run has begun, the
--   reservation is over, or there is no place
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local limit = tonumber(ARGV[4])

local function microseconds(time)
  return string.format('%.0f', time)
end

-- What a record says, in the order of lua/README.md.
local RECORD = '^(%d+) (%d+) (%d+) ([01]) ([01]) (%S*) (.*)\n(.*)$'

-- The others, the oldest first.
local mine
local queued, reserved = {}, 0
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local ends, until_when, order, is_queued, kept, attempt, worker, task = string.match(fields[i + 1], RECORD)
  local call = {
    id = fields[i], ends = tonumber(ends or 0), until_when = until_when, order = tonumber(order or 0), kept = kept,
    attempt = attempt, worker = worker, task = task, is_queued = is_queued == '1'
  }
  if call.ends <= now then
    redis.call('HDEL', KEYS[1], call.id)
  elseif call.id == ARGV[1] then
    mine = call
  elseif call.is_queued then
    table.insert(queued, call)
  else
    reserved = reserved + 1
  end
end
table.sort(queued, function(one, other)
  return one.order < other.order
end)

local function write(call)
  redis.call('HDEL', KEYS[1], '') -- a full server refuses what grows only as a script's first write
  redis.call(
    'HSET', KEYS[1], ARGV[1], table.concat(
      {
        microseconds(now + ARGV[3] * 1000), call.until_when, microseconds(call.order), 1, call.kept, ARGV[2],
        call.worker .. '\n' .. call.task
      }, ' '
    )
  )
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  end
end

-- A request that is repeated finds what it has done.
local function already(reply)
  return ARGV[6] ~= '' and redis.call('GET', KEYS[4]) == ARGV[1] and 2 or reply
end

if (ARGV[8] or '') ~= '' then
  if mine and mine.attempt == ARGV[2] then
    return {1}
  end
  -- A request that arrives late finds that the run does not hold the lock any more.
  if mine or #queued + reserved >= limit or redis.call('HGET', KEYS[2], '@token') ~= ARGV[8] then
    return {0}
  end
  write({until_when = 0, order = now, kept = 1, worker = ARGV[9], task = string.gsub(ARGV[10], '\n', ' ')})
  return {1}
end

if not mine or mine.attempt ~= ARGV[2] then
  local later = not mine and redis.call('GET', KEYS[5])
  return later and {-1, later} or {already(0)}
end
if mine.is_queued then
  return {already(1)}
end
if #queued < limit then
  write(mine)
  return {1}
end
local oldest = queued[1]
if ARGV[7] ~= '1' or oldest.task ~= mine.task then
  redis.call('HDEL', KEYS[1], ARGV[1])
  return {0}
end
if oldest.order > mine.order then
  local newest = queued[#queued]
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('SET', KEYS[5], newest.id, 'PX', ARGV[3] + ARGV[5])
  return {-1, newest.id}
end
if oldest.kept == '1' or tonumber(oldest.until_when) <= now then
  redis.call('HDEL', KEYS[1], oldest.id) -- it runs too, and postpones nothing any more
  write(mine)
  return {1}
end
if oldest.id ~= ARGV[6] then
  return {3, oldest.id}
end
redis.call('HDEL', KEYS[1], oldest.id)
redis.call('SET', KEYS[4], ARGV[1], 'PX', math.ceil((oldest.ends - now) / 1000) + ARGV[5])
mine.until_when = oldest.until_when
write(mine)
-- If the older call already waits for the lock, let it see that it has been superseded.
local channels = string.match(KEYS[2], '^[^{]*') .. 'wake:' -- the prefix stands before the hash tag
for _, waiter in ipairs(redis.call('ZREVRANGE', KEYS[3], 0, 99)) do
  if string.match(waiter, '^[^:]*:[^:]*:(.*)') == oldest.id then
    redis.call('ZREM', KEYS[3], waiter)
    local said = 'turn ' .. clock[1] .. '.' .. clock[2] .. ' ' .. KEYS[2] .. ' ' .. waiter
    redis.call('PUBLISH', channels .. string.match(waiter, '^[^:/]*'), said)
  end
end
return {2}
