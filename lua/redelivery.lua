-- copy.lua: a message was delivered again; its run, if it holds the lock, is to say when it has ended.
-- KEYS[1] lock    hash, see lua/README.md
-- KEYS[2] done    says that this task, with this retry count, has ended
-- ARGV[1] task    the task's id
-- returns 2 it has ended · 1 it holds the lock, and keeps it until its end is known · 0 neither
if redis.call('EXISTS', KEYS[2]) == 1 then
  return 2
end
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.match(field, '^[^@:]*:(.*)') == ARGV[1] then
    redis.call('HDEL', KEYS[1], '') -- a full server refuses what grows only as a script's first write
    redis.call('HSET', KEYS[1], '@copy', 1)
    return 1
  end
end
return 0
