-- virtual_time.lua: run a shipped script on given keys, at a given time. The explorer puts the text of the script,
-- unchanged, in the place of the word SHIPPED below.
-- ARGV[1] JSON: now (microseconds), keys (name, type, values, milliseconds to live), listeners (channels with a
--   subscriber), names (the script's KEYS), args (the script's ARGV)
-- returns {reply, keys afterwards, what was published}
-- The server stores the keys and runs every command on them. Only the clock, expiry and PUBLISH are replaced.
local input = cjson.decode(ARGV[1])
local server, expiry, published, listeners, names = redis, {}, {}, {}, {}

for _, channel in ipairs(input.listeners) do
  listeners[channel] = true
end
for _, name in ipairs(input.names) do
  names[name] = true
  server.call('DEL', name) -- the server has no other keys but those given
end
local write = {hash = 'HSET', zset = 'ZADD', string = 'SET'}
for _, key in ipairs(input.keys) do
  names[key[1]] = true
  server.call(write[key[2]], key[1], unpack(key[3]))
  if key[4] >= 0 then
    expiry[key[1]] = key[4]
  end
end

local may_remove = {DEL = true, GETDEL = true, HDEL = true, ZREM = true, ZPOPMIN = true}
local virtual = {error_reply = server.error_reply, status_reply = server.status_reply}

function virtual.call(command, key, ...)
  if command == 'TIME' then
    return {string.format('%.0f', math.floor(input.now / 1000000)), string.format('%.0f', input.now % 1000000)}
  elseif command == 'PTTL' then
    return server.call('EXISTS', key) == 0 and -2 or expiry[key] or -1
  elseif command == 'PEXPIRE' then
    if server.call('EXISTS', key) == 0 then
      return 0
    end
    expiry[key] = math.floor(tonumber(...))
    return 1
  elseif command == 'SET' then
    local value, option, ms = ...
    if option and option ~= 'PX' then
      return error('this clock knows no SET with ' .. option)
    end
    expiry[key] = option and math.floor(tonumber(ms)) or nil
    return server.call('SET', key, value)
  elseif command == 'PUBLISH' then
    if not listeners[key] then
      return 0
    end
    published[#published + 1] = {key, (...)}
    return 1
  elseif string.find(command, 'EXPIRE') or string.find(command, 'EX$') then
    return error('this clock knows no ' .. command)
  end
  local reply = server.call(command, key, ...)
  if may_remove[command] and server.call('EXISTS', key) == 0 then
    expiry[key] = nil
  end
  return reply
end

local function shipped(redis, KEYS, ARGV)
SHIPPED
end

local reply = shipped(virtual, input.names, input.args)
local read = {hash = {'HGETALL'}, zset = {'ZRANGE', 0, -1, 'WITHSCORES'}, string = {'GET'}}
local after = {}
for name in pairs(names) do
  local kind = server.call('TYPE', name).ok
  if kind ~= 'none' then
    local command = read[kind]
    local values = server.call(command[1], name, unpack(command, 2))
    after[#after + 1] = {name, kind, values, expiry[name] or -1}
    server.call('DEL', name)
  end
end
return {reply, after, published}
