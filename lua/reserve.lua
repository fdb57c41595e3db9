-- reserve.lua: a call is about to be published: reserve a place among the pending calls of its key.
-- KEYS[1] pending    hash of the pending calls, see lua/README.md
-- KEYS[2] lock       hash, see lua/README.md
-- KEYS[3] superseded exists when a later call has taken the place of an earlier one with this id; it is forgotten
-- ARGV[1] id         the task's id
-- ARGV[2] attempt    names this publication; a repeated request carries the same name
-- ARGV[3] worker     the process that publishes, shown to people
-- ARGV[4] task       the task's name
-- ARGV[5] deadline   the server's time in microseconds at which the caller gives up; 0: the caller does not know it
-- ARGV[6] lease      how long the reservation lasts unless lua/queue.lua confirms it, in milliseconds
-- ARGV[7] limit      how many calls may be pending
-- ARGV[8] replace    1: if there is no place, lua/queue.lua is to take that of the oldest call of the same task
-- ARGV[9] alone      1: not while the same task has the key, either, unless another call of it is queued
-- ARGV[10] kept      1: no later call may take the place of this one
-- ARGV[11] postpone  how long from now later calls may postpone the run, in milliseconds
-- ARGV[12] order     when the call was made, as an earlier reply about another of its keys says; 0: now
-- A call that is being published has a reservation only. No caller is told that it is queued, because it may fail.
-- returns {1, time, order} reserved · {1, time, order, ms, id} reserved, to take the place of this call, and the run
--   may be postponed for so long at most
--   · {0, time, ms, owner, worker, task} busy · {2, time} a call is being published: ask again · {-2, time} too late
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
if now > tonumber(ARGV[5]) and ARGV[5] ~= '0' then
  return {-2, now}
end
if ARGV[1] == '' then
  return redis.error_reply('ERR the call must have an id')
end

local function microseconds(time)
  return string.format('%.0f', time)
end

-- What a record says, in the order of lua/README.md.
local RECORD = '^(%d+) (%d+) (%d+) ([01]) ([01]) (%S*) (.*)\n(.*)$'

local function busy(id, ends, worker, task)
  return {0, now, math.ceil((ends - now) / 1000), 'queued:' .. id, worker, task}
end

local limit, queued, reserved, oldest = tonumber(ARGV[7]), 0, 0, nil
local queued_of_task = {}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local id = fields[i]
  local ends, until_when, order, is_queued, kept, attempt, worker, task = string.match(fields[i + 1], RECORD)
  if not ends or tonumber(ends) <= now then
    redis.call('HDEL', KEYS[1], id)
  elseif id == ARGV[1] then
    if attempt == ARGV[2] and is_queued == '1' then
      return {1, now, tonumber(order)}
    elseif is_queued == '1' then
      return busy(id, ends, worker, task)
    elseif attempt ~= ARGV[2] then
      return {2, now}
    end
  elseif is_queued == '1' then
    queued = queued + 1
    if task == ARGV[4] then
      table.insert(queued_of_task, id)
    end
    if not oldest or tonumber(order) < oldest.order then
      oldest = {
        id = id, ends = ends, until_when = tonumber(until_when), order = tonumber(order), kept = kept,
        worker = worker, task = task
      }
    end
  else
    reserved = reserved + 1
  end
end

-- A call that was superseded may have the key for a moment, before it ends without a run. Then the call that took its
-- place is queued, and this one is no duplicate of a run.
local function is_run_to_come_after(owner)
  for _, id in ipairs(queued_of_task) do
    if id ~= string.match(owner, ':(.*)') then
      return true
    end
  end
end

if ARGV[9] == '1' then
  local fields_of_lock = redis.call('HKEYS', KEYS[2])
  local about = redis.call('HMGET', KEYS[2], '@task', '@worker')
  for _, field in ipairs(fields_of_lock) do
    if string.sub(field, 1, 1) ~= '@' and about[1] == ARGV[4] and not is_run_to_come_after(field) then
      return {0, now, redis.call('PTTL', KEYS[2]), field, about[2] or '', about[1]}
    end
  end
end

local replaced
if queued + reserved >= limit then
  if ARGV[8] == '1' and (queued < limit or oldest.task == ARGV[4]) then
    replaced = queued >= limit and oldest.kept == '0' and oldest.until_when > now and oldest or nil
  elseif queued >= limit then
    return busy(oldest.id, oldest.ends, oldest.worker, oldest.task)
  else
    return {2, now}
  end
end

local order = ARGV[12] ~= '0' and ARGV[12] or microseconds(now)
redis.call(
  'HSET', KEYS[1], ARGV[1], table.concat(
    {
      microseconds(now + ARGV[6] * 1000), microseconds(now + ARGV[11] * 1000), order, 0, ARGV[10], ARGV[2],
      ARGV[3] .. '\n' .. string.gsub(ARGV[4], '\n', ' ')
    }, ' '
  )
)
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[6]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[6])
end
redis.call('DEL', KEYS[3])
if replaced then
  return {1, now, tonumber(order), math.ceil((replaced.until_when - now) / 1000), replaced.id}
end
return {1, now, tonumber(order)}
