-- renew.lua: start the owner's lease again.
-- KEYS[1] lock    hash, see lua/README.md
-- ARGV[1] owner   who holds it, delivery:task-id; anybody else changes nothing
-- ARGV[2] ttl     lease in milliseconds; a longer lease that is already there is kept
-- returns 1 renewed · 0 not the holder (any more)
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
