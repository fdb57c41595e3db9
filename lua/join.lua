-- join.lua: take a place at the end of the line for a new message, whose task has not asked for the lock yet.
-- KEYS[1] lock    hash, see lua/README.md
-- KEYS[2] waiters sorted set of the waiters, by when they first found the lock busy
-- ARGV[1] waiter  the caller, listener:delivery:task-id
-- ARGV[2] keep    how long its place is kept unless it asks again, in milliseconds
-- returns since when it has its place, in microseconds of the server's clock · 0 no place: another delivery of its
--   message, or its task in another state, has the lock
local message = string.match(ARGV[1], '^[^:]+:[^.:]*(.*)')
if not message then
  return redis.error_reply('ERR the waiter must be listener:delivery:task-id')
end
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.match(field, '^[^@.:]*(.*)') == message then
    return 0
  end
end
local time = redis.call('TIME')
local since = time[1] * 1000000 + time[2]
redis.call('ZREM', KEYS[2], '') -- a full server refuses what grows only as a script's first write
if redis.call('ZADD', KEYS[2], 'NX', string.format('%.0f', since), ARGV[1]) == 0 then
  since = tonumber(redis.call('ZADD', KEYS[2], 'INCR', 0, ARGV[1])) -- it has its place already
end
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return since
