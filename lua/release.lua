-- release.lua: leave the lock; free it when the depth is 0.
-- KEYS[1] lock    hash, see lua/README.md
-- KEYS[2] token   the last token of this key, kept for a while after a release
-- ARGV[1] owner   who leaves, delivery:task-id; anybody else changes nothing
-- ARGV[2] depth   the depth the owner is at afterwards
-- ARGV[3] keep    how long the last token is remembered, in milliseconds
-- ARGV[4] early   1: not yet if a copy of the task's message was delivered, for it must learn how this one ended
-- returns 1 done · 2 too early, still held · 0 the key is gone · -1 somebody else holds it
local held = redis.call('HMGET', KEYS[1], ARGV[1], '@token', '@copy')
if not held[1] then
  return -redis.call('EXISTS', KEYS[1])
end
if ARGV[2] ~= '0' then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  return 1
end
if held[3] and ARGV[4] == '1' then
  return 2
end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[2], held[2], 'PX', ARGV[3])
return 1
