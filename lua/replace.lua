-- replace.lua: a newcomer wants to run instead of the holder and the waiters of its own task.
-- KEYS[1] lock      hash, see lua/README.md
-- KEYS[2] newest    hash: for each task, the newest call that replaces others
-- KEYS[3] done      given if the holder's message may be delivered again: that delivery must not run any more
-- ARGV[1] holder    the owner that the caller found, delivery:task-id; itself, if it has the lock; empty: any
-- ARGV[2] task      the caller's task; only a holder of the same task is told to end
-- ARGV[3] id        the caller's task id
-- ARGV[4] since     when the caller first found the lock busy, in microseconds (0: now); a later holder goes on
-- ARGV[5] keep      how long the caller counts as the newest unless it asks again, in milliseconds
-- returns {0, id} a newer call replaces the caller too · {1, ms, holder} the holder is told to end; ms since it has
--   heard that, or -1 · {2} the holder is not to end: wait for it
-- How long, in milliseconds, redelivered messages can learn that their task has ended.
local DONE_MEMORY = 3600000

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local since = ARGV[4] ~= '0' and tonumber(ARGV[4]) or now
-- A time in the future is from before the clock went back, or another program wrote it.
local newest_since, newest_id = string.match(redis.call('HGET', KEYS[2], ARGV[2]) or '', '^(%d+) (.*)$')
newest_since = tonumber(newest_since or '0')
if newest_id ~= ARGV[3] and newest_since > since and newest_since <= now then
  return {0, newest_id}
end
redis.call('HDEL', KEYS[2], '') -- a full server refuses what grows only as a script's first write
redis.call('HSET', KEYS[2], ARGV[2], string.format('%.0f', since) .. ' ' .. ARGV[3])
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[5]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
end

local holder = ARGV[1]
if holder == '' then
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, 1) ~= '@' then
      holder = field
    end
  end
end
local id = string.match(holder, '^[^:]+:(.*)')
local kind = string.match(holder, '^[^.:]*')
if not id or id == ARGV[3] or kind == 'queued' or kind == 'rest' then
  return {2}
end
local held = redis.call('HMGET', KEYS[1], holder, '@token', '@task', '@replaced', '@told')
local token = tonumber(string.match(held[2] or '', '^%d+$') or 'inf')
if not held[1] or held[3] ~= ARGV[2] or token >= since then
  return {2}
end
if held[4] ~= ARGV[3] then
  redis.call('HSET', KEYS[1], '@replaced', ARGV[3])
end
if KEYS[3] then
  redis.call('SET', KEYS[3], 'replaced by ' .. ARGV[3], 'PX', DONE_MEMORY)
end
local told = tonumber(string.match(held[5] or '', '^%d+$') or '-1')
return {1, told < 0 and -1 or math.max(0, math.floor(now / 1000) - told), holder}
