-- wait.lua: take a place among the waiters; when the lock is free, it is the first one's turn.
-- KEYS[1] lock    hash, see lua/README.md
-- KEYS[2] waiters who waits for the lock, by when they came
-- KEYS[3] woken   that somebody was woken a moment ago
-- ARGV[1] waiter  who waits: listener:delivery:task-id
-- ARGV[2] since   when it found the lock busy (acquire.lua said so); empty: now
-- ARGV[3] keep    how long its place is kept unless it asks again, in milliseconds
-- ARGV[4] channel what a listener's channel begins with
-- ARGV[5] trust   how long one who was woken may take to come, in milliseconds
-- returns 0 it is this waiter's turn, and its place is given up · else in how many milliseconds to ask again
local since = ARGV[2]
if since == '' then
  local time = redis.call('TIME')
  since = string.format('%.0f', time[1] * 1000000 + time[2])
end
redis.call('ZADD', KEYS[2], 'NX', since, ARGV[1])
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end

-- Held until then, or free and somebody is on the way.
local later = math.max(redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[3]))
if later > 0 then
  return later
end

local first
repeat
  first = redis.call('ZPOPMIN', KEYS[2])[1]
until first == ARGV[1]
  or redis.call('PUBLISH', ARGV[4] .. string.match(first, '^[^:]*'), KEYS[1] .. ' ' .. first) > 0
redis.call('SET', KEYS[3], first, 'PX', ARGV[5])
return first == ARGV[1] and 0 or tonumber(ARGV[5])
