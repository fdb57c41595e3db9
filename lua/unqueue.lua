-- unqueue.lua: a call is not pending any more, because its run is about to begin or never will.
-- KEYS[1] pending    hash of the pending calls, see lua/README.md
-- KEYS[2] superseded exists when a later call has taken the place of this one
-- ARGV[1] id         the task's id
-- ARGV[2] attempt    only the call that was published under this name; empty: any call with this id
-- ARGV[3] begins     1: its run begins, so tell if it is still being published as far as Redis knows
-- returns {1} not pending any more · {0, id} superseded by that call · {2, attempt} it has a reservation only: ask
--   lua/queue.lua first, which knows the calls that it supersedes
local record = redis.call('HGET', KEYS[1], ARGV[1])
local is_queued, attempt
if record then
  is_queued, attempt = string.match(record, '^%d+ %d+ %d+ ([01]) [01] (%S*) ')
end
if not record and ARGV[2] == '' then
  local later = redis.call('GET', KEYS[2])
  if later then
    return {0, later}
  end
end
if record and is_queued == '0' and ARGV[3] == '1' then
  return {2, attempt}
end
if record and (ARGV[2] == '' or ARGV[2] == attempt) then
  redis.call('HDEL', KEYS[1], ARGV[1])
end
return {1}
