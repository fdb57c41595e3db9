-- unacked.lua: a delivery publishes its message again because its task waits, or is acknowledged after that.
-- KEYS[1] unacked  hash of the deliveries that published the message again and are not acknowledged
-- KEYS[2] done     exists when the task of this message has ended; 0: KEYS[1] was the only reason to tell it
-- ARGV[1] delivery the nonce of the delivery; redelivered: the message surely has several deliveries
-- ARGV[2] keep     how long the broker may deliver it again, in milliseconds; 0: it is acknowledged
-- returns 1
if ARGV[2] ~= '0' then
  redis.call('HDEL', KEYS[1], '') -- a full server refuses what grows only as a script's first write
  redis.call('HSET', KEYS[1], ARGV[1], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
redis.call('HDEL', KEYS[1], ARGV[1])
if redis.call('EXISTS', KEYS[1]) == 0 and redis.call('GET', KEYS[2]) == '0' then
  redis.call('DEL', KEYS[2])
end
return 1
