-- Inserts items into a growing or rotating filter, or checks whether they are in it.
--
--   KEYS: the plan, the progress of a growing filter ("NEWEST-GENERATION ITEM-COUNT")
--   ARGV: the plan; the prefix of the keys of shards; the header (8 bytes);
--         '1' to insert, '0' to check; 'growing' or 'rotating'; the period of a slice in ms; the number of slices;
--         the number of layouts;
--         for each layout: hashes, the index of the last byte, capacity, '1' if another may follow;
--         for each item and layout: the shard, then an offset for each hash
--   returns: false if the filter does not exist; else the newest generation, then for each item 1 if it was new (insert) or
--            is in the filter (check). Fewer replies than items if the filter has outgrown the layouts: the caller sends
--            the rest again, with more layouts.
--
-- Atomic because whether an item is new depends on several keys, and on the server's clock. A
-- growing filter has one layout per generation; all slices of a rotating one share the first.

local call = redis.call
if call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
local prefix, header = ARGV[2], ARGV[3]
local insert, rotating = ARGV[4] == '1', ARGV[5] == 'rotating'
local layouts = tonumber(ARGV[8])

local hashes, last, capacity, follows, width = {}, {}, {}, {}, 0
for i = 1, layouts do
  local at = 8 + (i - 1) * 4
  hashes[i], last[i] = tonumber(ARGV[at + 1]), ARGV[at + 2]
  capacity[i], follows[i] = tonumber(ARGV[at + 3]), ARGV[at + 4] == '1'
  width = width + 1 + hashes[i]
end

local oldest, newest, counted, ends = 0, 0, 0, nil
if rotating then
  local time, period, slices = call('TIME'), tonumber(ARGV[6]), tonumber(ARGV[7])
  newest = math.floor((time[1] * 1000 + math.floor(time[2] / 1000)) / period)
  oldest = newest - slices + 1
  ends = string.format('%.0f', (newest + slices) * period)
else
  local grown = call('GET', KEYS[2])
  if grown then
    local n, c = string.match(grown, '^(%d+) (%d+)$')
    newest, counted = tonumber(n), tonumber(c)
  end
end

local function layout(generation)
  return rotating and 1 or generation + 1
end

-- The position of a layout's offsets in the arguments of an item.
local starts, at = {}, 0
for i = 1, layouts do
  starts[i] = at
  at = at + 1 + hashes[i]
end

local function key(generation, item)
  return prefix .. string.format('%.0f', generation) .. ':' .. ARGV[item + starts[layout(generation)]]
end

local args = {}
local function bits(command, verb, generation, item)
  local l = layout(generation)
  local first = item + starts[l] + 1
  args[1], args[2] = command, key(generation, item)
  local n = 2
  for i = 0, hashes[l] - 1 do
    args[n + 1], args[n + 2], args[n + 3] = verb, 'u1', ARGV[first + i]
    n = n + 3
    if verb == 'SET' then
      n = n + 1
      args[n] = '1'
    end
  end
  local all = true
  for _, bit in ipairs(call(unpack(args, 1, n))) do
    all = all and bit == 1
  end
  return all
end

-- A shard is created at its full length, so that it takes no more memory than needed.
local made = {}
local function make(generation, item)
  local shard = key(generation, item)
  if not made[shard] and call('EXISTS', shard) == 0 then
    call('SETRANGE', shard, last[layout(generation)], '\0')
    call('SETRANGE', shard, 0, header)
    if ends then
      call('PEXPIREAT', shard, ends)
    end
  end
  made[shard] = true
end

local answers, before = {newest}, counted
local item = 9 + layouts * 4
while item <= #ARGV and layout(newest) <= layouts do
  local known = false
  for generation = oldest, newest - 1 do
    known = known or bits('BITFIELD_RO', 'GET', generation, item)
  end
  if not insert then
    known = known or bits('BITFIELD_RO', 'GET', newest, item)
    answers[#answers + 1] = known and 1 or 0
  else
    if rotating or not known then
      make(newest, item)
      known = bits('BITFIELD', 'SET', newest, item) or known
    end
    answers[#answers + 1] = known and 0 or 1
    if not known and not rotating then
      counted = counted + 1
      if counted >= capacity[newest + 1] and follows[newest + 1] then
        newest, counted = newest + 1, 0
      end
    end
  end
  item = item + width
end
if not rotating and (counted ~= before or newest ~= answers[1]) then
  call('SET', KEYS[2], string.format('%.0f %.0f', newest, counted))
end
answers[1] = newest
return answers
