-- acquire.lua: take the lock, or enter it again.
-- KEYS[1] lock    hash, see lua/README.md
-- KEYS[2] token   the last token of this key, kept for a while after a release
-- ARGV[1] owner   who asks: delivery:task-id
-- ARGV[2] worker  the owner's worker
-- ARGV[3] depth   the depth the owner wants to be at: 1 takes the lock, more enters again
-- ARGV[4] ttl     lease in milliseconds; a longer lease that is already there is kept
-- ARGV[5] task    what the lock is for, shown to people
-- What queued:task-id holds since it was published is this task's own to take over.
-- A holder of the same task id is told that a copy of its message was delivered, see lua/copy.lua.
-- returns {1, token} taken · {0, lease left in ms, owner, worker, task, the time in µs} busy · {-1} not held any more
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local id = string.match(ARGV[1], ':(.*)')
local last = 0
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if field == ARGV[1] and redis.call('HGET', KEYS[1], '@worker') == ARGV[2] then
    redis.call('HDEL', KEYS[1], '') -- a full server refuses what grows only as a script's first write
    redis.call('HSET', KEYS[1], field, ARGV[3])
    if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[4]) then
      redis.call('PEXPIRE', KEYS[1], ARGV[4])
    end
    return {1, redis.call('HGET', KEYS[1], '@token')}
  elseif field == 'queued:' .. id and ARGV[3] == '1' then
    last = tonumber(redis.call('HGET', KEYS[1], '@token'))
    redis.call('DEL', KEYS[1])
    break
  elseif string.sub(field, 1, 1) ~= '@' then
    if string.match(field, ':(.*)') == id then
      redis.call('HDEL', KEYS[1], '') -- as above
      redis.call('HSET', KEYS[1], '@copy', 1)
    end
    local shown = redis.call('HMGET', KEYS[1], '@worker', '@task')
    return {0, redis.call('PTTL', KEYS[1]), field, shown[1], shown[2], string.format('%.0f', now())}
  end
end

if ARGV[3] ~= '1' then
  return {-1}
end

-- The floor is the server's clock, so a token that Redis forgot is still behind the next one.
local time = now()
last = math.max(last, tonumber(redis.call('GETDEL', KEYS[2]) or '0'))
local token = string.format('%.0f', math.max(time, last + 1))
if last >= time then
  -- The clock went back: remember the token until it has caught up.
  redis.call('SET', KEYS[2], token, 'PX', math.ceil((last - time) / 1000) + ARGV[4])
end
redis.call(
  'HSET', KEYS[1], ARGV[1], 1,
  '@worker', ARGV[2], '@token', token, '@since', math.floor(time / 1000000), '@task', ARGV[5]
)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {1, token}
