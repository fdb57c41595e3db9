-- record.lua: record one game of one user in all keys, or in none.
-- KEYS[1] game      string, exists if this game was recorded; so a second delivery changes nothing
-- KEYS[2] totals    hash of the user: games, points
-- KEYS[3] day       string, the user's games of one day
-- KEYS[4] ranking   sorted set, the board's best users by points
-- ARGV[1] user      the user who played
-- ARGV[2] seen      the user's number of games when the points were computed
-- ARGV[3] points    the points of this game
-- ARGV[4] size      the number of users in the ranking
-- ARGV[5] days_ms   how long the day and the game are kept
-- ARGV[6] totals_ms how long the totals are kept after the user's last game
-- returns 1 recorded · 0 it was recorded before · -1 the user has played since, so compute the points again

if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
if (redis.call('HGET', KEYS[2], 'games') or '0') ~= ARGV[2] then
  return -1
end

redis.call('SET', KEYS[1], '1', 'PX', ARGV[5])
redis.call('HINCRBY', KEYS[2], 'games', 1)
local points = redis.call('HINCRBY', KEYS[2], 'points', ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[6])
redis.call('INCR', KEYS[3])
redis.call('PEXPIRE', KEYS[3], ARGV[5])
redis.call('ZADD', KEYS[4], points, ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -1 - ARGV[4])
redis.call('PEXPIRE', KEYS[4], ARGV[6])
return 1
