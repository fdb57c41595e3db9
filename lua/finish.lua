-- finish.lua: free the lock of a task that has ended, and tell the copies of its message.
-- KEYS[1] lock    hash, see lua/README.md
-- KEYS[2] token   the last token of this key, kept for a while after a release
-- KEYS[3] done    says that this task, with this retry count, has ended
-- ARGV[1] owner   who leaves, delivery:task-id; anybody else changes nothing
-- ARGV[2] keep    how long the last token is remembered, in milliseconds
-- ARGV[3] tell    how long the copies may still ask, in milliseconds
-- returns 1 done · 0 the key is gone · -1 somebody else holds it
local held = redis.call('HMGET', KEYS[1], ARGV[1], '@token', '@copy')
if not held[1] then
  return -redis.call('EXISTS', KEYS[1])
end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[2], held[2], 'PX', ARGV[2])
if held[3] then
  redis.call('SET', KEYS[3], 1, 'PX', ARGV[3])
end
return 1
