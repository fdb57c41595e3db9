-- redelivery.lua: what became of a message that may have been delivered more than once?
-- KEYS[1] lock    hash, see lua/README.md
-- KEYS[2] done    exists when the task of this message has ended
-- ARGV[1] message the owner's name without the nonce: counts:task-id
-- ARGV[2] mark    1: a delivery of the message that holds the lock keeps it until its end is known, and tells its end
-- returns 2 its task has ended · id: the task with this id replaces it · 1 a delivery of it holds the lock · 0 neither
local done = redis.call('GET', KEYS[2])
if done then
  return string.match(done, '^replaced by (.*)$') or 2
end

local function note(field)
  redis.call('HDEL', KEYS[1], '') -- a full server refuses what grows only as a script's first write
  if redis.call('HEXISTS', KEYS[1], '@token') == 1 then
    redis.call('HSET', KEYS[1], '@redelivered', 1)
    return
  end
  local record = redis.call('HGET', KEYS[1], field)
  redis.call('HSET', KEYS[1], field, (string.gsub(record, '^(%d+ %d+ %d+ %d+ %d+ %d+ %d+) 0', '%1 1')))
end

-- Whether this field is a place whose lease has ended.
local function is_over(field)
  local lease = string.match(redis.call('HGET', KEYS[1], field), '^(%d+) %d+ %d+ ')
  local clock = redis.call('TIME')
  return lease and tonumber(lease) <= clock[1] * 1000000 + clock[2]
end

for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.match(field, '^[^@.:]*(.*)') == ARGV[1] and not is_over(field) then
    if ARGV[2] == '1' then
      note(field)
    end
    return 1
  end
end
return 0
