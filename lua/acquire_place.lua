-- acquire_place.lua: take one of several places of a key, re-enter it, or take a place in line.
-- KEYS[1] lock     hash, see lua/README.md
-- KEYS[2] token    the last token of this key, kept for a while after a release
-- KEYS[3] waiters  sorted set of the waiters, by when they first found no place
-- KEYS[4] woken    the waiter whose turn it is to take the whole key
-- ARGV[1] owner    the caller, delivery:task-id
-- ARGV[2] worker   the caller's worker
-- ARGV[3] ttl      lease in milliseconds; a longer lease that is already there is kept
-- ARGV[4] task     the task's name, shown to people; empty: the owner is no message that could be redelivered
-- ARGV[5] attempt  names this ownership; a repeated request carries the same name, a later one a larger number
-- ARGV[6] deadline the server's time in microseconds at which the caller gives up; 0: the caller does not know it
-- ARGV[7] limit    the caller enters only if it and those inside are at most so many, for each of them
-- ARGV[8] hold     how long the place stays taken from now, even when its owner leaves or dies, in milliseconds
-- ARGV[9] depth    the depth the owner wants: 1 takes a place, more re-enters it
-- ARGV[10] waiter  listener/limit:delivery:task-id: if there is no place, take this place in line; empty: none
-- ARGV[11] since   when the caller first found no place, in microseconds; 0: now
-- ARGV[12] keep    how long the place in line is kept unless the waiter asks again, in milliseconds
-- A message that is delivered again gets no second place: its first delivery learns of it, see lua/redelivery.lua.
-- returns {1, time, token, slot} taken · {0, time, ms until a place may be free, owner, worker, task} busy
--   · {-1, time} not held any more · {-2, time} too late · {2, time} free, but the first waiter must be woken
--   · {3, time} one owner has the whole key: ask lua/acquire.lua
local id = string.match(ARGV[1], '^[^:]+:(.*)')
if not id then
  return redis.error_reply('ERR the owner must be delivery:task-id')
end
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
if now > tonumber(ARGV[6]) and ARGV[6] ~= '0' then
  return {-2, now}
end
local limit, waiter, since = tonumber(ARGV[7]), ARGV[10], ARGV[11]

-- What a record says, in the order of lua/README.md.
local RECORD = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ([01]) (%S*) (.*)\n(.*)$'

local function message_of(owner)
  return string.match(owner, '^[^.:]*(.*)')
end

-- A thread has no message. Those of two processes may have the same number.
local is_message = ARGV[4] ~= '' and not (string.match(ARGV[2], '^%d+@') and string.match(id, '^thread%-'))

-- An owner counts its attempts.
local function is_older(attempt, other)
  local number, other_number = string.match(attempt, '^%d+$'), string.match(other, '^%d+$')
  return number and other_number and tonumber(number) < tonumber(other_number)
end

local function microseconds(time)
  return string.format('%.0f', time)
end

local function limit_of(other_waiter)
  return math.max(1, tonumber(string.match(other_waiter, '^[^:/]*/(%d+):') or 1))
end

local function keep_for(ms)
  if redis.call('PTTL', KEYS[1]) < tonumber(ms) then
    redis.call('PEXPIRE', KEYS[1], ms)
  end
end

-- Look at all places. `lowest` is the smallest limit of those inside. A field of another program takes all places.
local fields = redis.call('HGETALL', KEYS[1])
local taken, lowest, last, ends, slots = 0, math.huge, 0, math.huge, {}
local mine, turn, shown, shown_ends, other
for i = 1, #fields, 2 do
  local field, record = fields[i], fields[i + 1]
  if string.sub(field, 1, 1) == '@' then
    return {3, now}
  end
  local lease, slot, its_limit, token = string.match(record, '^(%d+) (%d+) (%d+) %d+ (%d+) ')
  lease = tonumber(lease or math.huge)
  if lease >= 2 ^ 53 or tonumber(token) >= 2 ^ 53 then
    lease, its_limit, token = math.huge, 1, 0
  end
  local place = string.match(field, '^turn:(.*)')
  if lease <= now then
    redis.call('HDEL', KEYS[1], field)
  elseif field == ARGV[1] and lease < math.huge then
    mine = record
  elseif place and string.match(place, '^[^:]*:(.*)') == ARGV[1] then
    turn = field
  else
    taken, lowest, ends = taken + 1, math.min(lowest, its_limit), math.min(ends, lease)
    if not place then
      slots[slot or ''] = true
    end
    last = math.max(last, token)
    if is_message and lease < math.huge and message_of(field) == message_of(ARGV[1]) then
      other = field
    end
    -- Show another run of the same task, else the owner whose place is free first.
    local rank = string.match(field, '^[^:]*:(.*)') == id and 0 or place and math.huge or lease
    if not shown or rank < shown_ends then
      shown, shown_ends = field, rank
    end
  end
end

local function take_place()
  if waiter ~= '' then
    redis.call('ZREM', KEYS[3], '') -- a full server refuses what grows only as a script's first write
    redis.call('ZADD', KEYS[3], 'NX', since ~= '0' and since or microseconds(now), waiter)
    if redis.call('PTTL', KEYS[3]) < tonumber(ARGV[12]) then
      redis.call('PEXPIRE', KEYS[3], ARGV[12])
    end
  end
end

local function busy(owner, until_when)
  take_place()
  local _, _, _, _, _, _, _, _, _, worker, task = string.match(redis.call('HGET', KEYS[1], owner) or '', RECORD)
  local ms = until_when < math.huge and math.ceil((until_when - now) / 1000) or redis.call('PTTL', KEYS[1])
  return {0, now, ms, string.match(owner, '^turn:[^:]*:(.*)') or owner, worker or '', task or ''}
end

if mine then
  local lease, slot, its_limit, _, token, rest, taken_at, redelivered, attempt, worker, task =
    string.match(mine, RECORD)
  if worker ~= ARGV[2] then
    return busy(ARGV[1], tonumber(lease or math.huge))
  end
  if attempt == ARGV[5] then
    lease = math.max(lease, now + ARGV[3] * 1000)
    redis.call('HDEL', KEYS[1], '') -- as above
    redis.call(
      'HSET', KEYS[1], ARGV[1], microseconds(lease) .. ' ' .. table.concat(
        {slot, its_limit, ARGV[9], token, rest, taken_at, redelivered, attempt, worker .. '\n' .. task}, ' '
      )
    )
    keep_for(ARGV[3])
    return {1, now, tonumber(token), tonumber(slot)}
  end
  if is_older(ARGV[5], attempt) then
    return {-2, now} -- the caller has given up this request, and has asked again since
  end
  redis.call('HDEL', KEYS[1], ARGV[1]) -- the owner gave up an earlier ownership, whose release has not arrived yet
  last = math.max(last, token)
end
if ARGV[9] ~= '1' then
  return {-1, now}
end
if other then
  redis.call('HDEL', KEYS[1], '') -- as above
  local record = redis.call('HGET', KEYS[1], other)
  redis.call('HSET', KEYS[1], other, (string.gsub(record, '^(%d+ %d+ %d+ %d+ %d+ %d+ %d+) 0', '%1 1')))
  return busy(other, tonumber(string.match(record, '^%d+')))
end
if taken >= math.min(limit, lowest) then
  return busy(shown, ends)
end

-- The line has precedence over newcomers. A waiter that was woken has a place, which is kept for it.
if not turn then
  local whole = redis.call('GET', KEYS[4])
  if whole and string.match(whole, '^[^:]*:(.*)') ~= ARGV[1] then
    take_place()
    local owner = string.match(whole, '^[^:]*:(.*)') or whole
    return {0, now, math.max(1, redis.call('PTTL', KEYS[4])), owner, '', ''}
  end
  local first = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
  local is_first = string.match(first[1] or '', '^[^:]*:(.*)') == ARGV[1]
  if first[1] and not is_first and (since == '0' or tonumber(since) > tonumber(first[2])) then
    if taken >= math.min(lowest, limit_of(first[1])) then
      return busy(shown, ends) -- the first waiter wants more places for itself
    end
    take_place()
    return {2, now}
  end
  if whole then
    redis.call('DEL', KEYS[4])
  end
else
  redis.call('HDEL', KEYS[1], turn)
end
if waiter ~= '' then
  redis.call('ZREM', KEYS[3], waiter)
end

-- The floor is the server's clock, so a token that Redis has forgotten is still smaller than the next one.
local remembered = tonumber(string.match(redis.call('GETDEL', KEYS[2]) or '', '^%d+$') or '0')
last = math.max(last, remembered < 2 ^ 53 and remembered or 0)
local token = math.max(now, last + 1)
if last >= now then
  -- The clock went back: remember the token until the clock has caught up.
  redis.call('SET', KEYS[2], microseconds(token), 'PX', math.ceil((last - now) / 1000) + ARGV[3])
end
local slot = 0
while slots[tostring(slot)] do
  slot = slot + 1
end
local rest = tonumber(ARGV[8]) > 0 and now + ARGV[8] * 1000 or 0
local lease = math.max(now + ARGV[3] * 1000, rest)
redis.call(
  'HSET', KEYS[1], ARGV[1], microseconds(lease) .. ' ' .. table.concat(
    {
      slot, ARGV[7], 1, microseconds(token), microseconds(rest), clock[1], 0, ARGV[5],
      ARGV[2] .. '\n' .. string.gsub(ARGV[4], '\n', ' ')
    }, ' '
  )
)
keep_for(math.max(ARGV[3], ARGV[8]))
return {1, now, token, slot}
