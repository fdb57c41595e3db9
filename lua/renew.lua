-- renew.lua: start the owner's lease again, and learn whether the owner is to end.
-- KEYS[1] lock    hash, see lua/README.md
-- ARGV[1] owner   the caller, delivery:task-id
-- ARGV[2] token   the token of the ownership; any other ownership is left alone
-- ARGV[3] ttl     lease in milliseconds; a longer lease that is already there is kept
-- returns 1 renewed · 0 the caller does not hold the lock under this token · id: renewed, and the task with this id
--   replaces the owner's, see lua/replace.lua
local held = redis.call('HMGET', KEYS[1], ARGV[1], '@token', '@replaced', '@told')
if held[1] and not held[2] then
  -- One of several places: its record begins with the end of its lease, see lua/README.md.
  local lease, token = string.match(held[1], '^(%d+) %d+ %d+ %d+ (%d+) ')
  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]
  if token ~= ARGV[2] or tonumber(lease) <= now then
    return 0
  end
  local ends = string.format('%.0f', math.max(lease, now + ARGV[3] * 1000))
  redis.call('HDEL', KEYS[1], '') -- a full server refuses what grows only as a script's first write
  redis.call('HSET', KEYS[1], ARGV[1], (string.gsub(held[1], '^%d+', ends)))
elseif ARGV[1] == '' or not held[1] or held[2] ~= ARGV[2] then
  return 0
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
if held[2] and held[3] then
  if not held[4] then
    local clock = redis.call('TIME')
    redis.call('HDEL', KEYS[1], '') -- as above
    redis.call('HSET', KEYS[1], '@told', string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000)))
  end
  return held[3]
end
return 1
