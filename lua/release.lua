-- release.lua: leave the lock; at depth 0 free it, and wake the first waiter. Without an owner: wake, if it is free.
-- KEYS[1] lock    hash, see lua/README.md
-- KEYS[2] token   the last token of this key, kept for a while after a release
-- KEYS[3] waiters who waits for the lock, by when they came
-- KEYS[4] woken   that somebody was woken a moment ago
-- KEYS[5] done    given when the owner's task has ended: says so to the copies of its message, if there are any
-- ARGV[1] owner   who leaves, delivery:task-id; anybody else changes nothing
-- ARGV[2] depth   the depth the owner is at afterwards
-- ARGV[3] keep    how long the last token is remembered, in milliseconds
-- ARGV[4] early   1: not yet if a copy of the task's message was delivered, for it must learn how this one ended
-- ARGV[5] channel what a listener's channel begins with
-- ARGV[6] trust   how long one who was woken may take to come, in milliseconds
-- ARGV[7] tell    how long the copies may still ask, in milliseconds
-- ARGV[8] heir    who has the key then, queued:task-id or rest:task-id; empty: nobody, it is free
-- ARGV[9] lease   how long the heir has it, in milliseconds
-- returns 1 done · 2 too early, still held · 0 the key is gone · -1 somebody else holds it
local function is_heard(waiter, what)
  local channel = ARGV[5] .. string.match(waiter, '^[^:]*')
  local time = redis.call('TIME') -- tells a message from its copies, and from the same one at another time
  local said = what .. ' ' .. time[1] .. '.' .. time[2] .. ' ' .. KEYS[1] .. ' ' .. waiter
  return redis.call('PUBLISH', channel, said) > 0
end

-- Who is not heard is dead, and passed over.
local function tell_next()
  local first = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
  while first and not is_heard(first, 'next') do
    redis.call('ZREM', KEYS[3], first)
    first = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
  end
end

local held = redis.call('HMGET', KEYS[1], ARGV[1], '@token', '@copy')
if held[1] then
  if ARGV[2] ~= '0' then
    redis.call('HDEL', KEYS[1], '') -- a full server refuses what grows only as a script's first write
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    return 1
  end
  if held[3] and ARGV[4] == '1' then
    return 2
  end
  if held[3] and KEYS[5] then
    redis.call('HDEL', KEYS[1], '') -- as above
    redis.call('SET', KEYS[5], 1, 'PX', ARGV[7])
  end
  if ARGV[8] ~= '' then
    redis.call('HDEL', KEYS[1], ARGV[1], '@copy')
    redis.call('HSET', KEYS[1], ARGV[8], 1)
    redis.call('PEXPIRE', KEYS[1], ARGV[9])
    for _, waiter in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
      if 'queued:' .. string.match(waiter, '^[^:]*:[^:]*:(.*)') == ARGV[8] then
        redis.call('ZREM', KEYS[3], waiter)
        is_heard(waiter, 'turn')
      end
    end
    tell_next() -- who learns how long the heir has it
    return 1
  end
  redis.call('DEL', KEYS[1])
  redis.call('SET', KEYS[2], held[2], 'PX', ARGV[3])
elseif redis.call('EXISTS', KEYS[1]) == 1 then
  return -1
end

local first
repeat
  first = redis.call('ZPOPMIN', KEYS[3])[1]
until not first or is_heard(first, 'turn')
if first then
  redis.call('SET', KEYS[4], first, 'PX', ARGV[6])
  tell_next() -- who looks whether the first has come
end
return held[1] and 1 or 0
