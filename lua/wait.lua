-- wait.lua: take a place among the waiters, or ask from there whether the lock is free.
-- KEYS[1] lock    hash, see lua/README.md
-- KEYS[2] waiters who waits for the lock, by when they came
-- KEYS[3] woken   that somebody was woken a moment ago
-- ARGV[1] waiter  who waits: listener:delivery:task-id
-- ARGV[2] since   when it found the lock busy (acquire.lua said so); empty: now
-- ARGV[3] keep    how long its place is kept unless it asks again, in milliseconds
-- ARGV[4] trust   how long one who was woken may take to come, in milliseconds
-- returns 0 free, and nobody was woken: the asker is to wake the first · -1 it is the asker's own, since it was
-- published · else in how many milliseconds to ask again
local since = ARGV[2]
if since == '' then
  local time = redis.call('TIME')
  since = string.format('%.0f', time[1] * 1000000 + time[2])
end
redis.call('ZREM', KEYS[2], '') -- a full server refuses what grows only as a script's first write
redis.call('ZADD', KEYS[2], 'NX', since, ARGV[1])
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end

if redis.call('HEXISTS', KEYS[1], 'queued:' .. string.match(ARGV[1], '^[^:]*:[^:]*:(.*)')) == 1 then
  return -1
end

-- Held until then, or free and somebody is on the way.
local later = math.max(redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[3]))
if later > 0 then
  return later
end
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[4])
return 0
