-- Decides on limiters, many in one call.
--
--   KEYS        for each decision: the limiter's state
--   ARGV[1]     how many plans follow. A plan is what several decisions of a batch share:
--                 verb: T take (or reserve), L lend, R return, C cancel, P peek
--                 wait: for T how many microseconds the caller would wait; for R when it was lent
--                 q, k: how many quotas, how many amounts
--                 how many decisions
--                 q times: kind, amount, period, full (2 numbers), lend time, limit
--                   kind t token bucket, z one into which nothing comes in, f fixed, s sliding window
--                   full: how long an empty bucket takes to fill (us, parts); else the limit, 0
--                   limit: what is written down for those who look without a quota
--                 k times, in the order in which they are tried: for each quota the amount's cost
--                   (2 numbers: us and parts for t; else units, 0)
--                 for R and C: the mark of the state that the units came from
--                 for C, for each quota: the bucket's time after the reservation (2 numbers)
--                 the numbers of its decisions, from 1; left out if there is one plan for all
--   returns     for each decision "<k> <now> <state>": which amount was granted, from 1, or 0; the time
--               in microseconds; and what is stored for the limiter ("" for nothing)
--
-- A state has for each quota, separated by commas,
--   t<limit> <amount> <period> <tat us> <tat parts> [<lent since> <lent before> <lent now>]
--   z<limit> <used>  |  f<limit> <period> <start> <count> [<end>]
--   s<limit> <period> <start> <count before> <count>
-- where the limit is that of whoever changed it last (none, if that is not known); and then, if anything was ever lent or reserved, its mark: m <when that first was>. It expires when it is as if it had never been. See "rules/limit" for what they mean; a part is one
-- amount-th of a microsecond. All numbers stay below 2^53, where Lua counts exactly.
--
-- Atomic because "is there room" and "now there is less" must not be parted, for any of the quotas.
-- Inner calls: TIME and MGET once; for each decision SET if allowed. MGET says of a key of another type that
-- there is none; so what is new is only set if there is none.
--
-- First what most decisions are: to take one amount from one bucket. They are decided in one flat pass,
-- because each function that a script defines costs Redis as much as a command does.

local pcall_redis, match, format = redis.pcall, string.match, string.format
local ceil, find = math.ceil, string.find
local FOREIGN = 'WRONGTYPE not a state of a limiter'
local time = pcall_redis('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = ' ' .. format('%.0f', now) .. ' '
local granted, denied = '1' .. stamp, '0' .. stamp
local replies, undecided = {}, {}
-- Several decisions may be on the same key: what the last one stored counts.
local stored, latest = pcall_redis('MGET', unpack(KEYS)), {}
local listed = ARGV[1] ~= '1'
local arg = 2
for _ = 1, ARGV[1] do
  local verb, q, k, count = ARGV[arg], ARGV[arg + 2], ARGV[arg + 3], tonumber(ARGV[arg + 4])
  local at = arg + 5
  arg = at + 7 * q + 2 * q * k
  if verb == 'C' then
    arg = arg + 2 * q + 1
  elseif verb == 'R' then
    arg = arg + 1
  end
  local cost, cost_part = ARGV[at + 7], ARGV[at + 8]
  local plan, amount, period, front, last, last_part, parts, reserves
  if verb == 'T' and q == '1' and k == '1' and ARGV[at] == 't' and (cost ~= '0' or cost_part ~= '0') then
    amount, period = ARGV[at + 1], ARGV[at + 2]
    front, parts = 't' .. ARGV[at + 6] .. ' ' .. amount .. ' ' .. period .. ' ', tonumber(amount)
    last, last_part = now + ARGV[at - 4] + ARGV[at + 3], tonumber(ARGV[at + 4])
    cost, cost_part = tonumber(cost), tonumber(cost_part)
    reserves = ARGV[at - 4] ~= '0'
  end
  for i = 1, count do
    local n = listed and tonumber(ARGV[arg + i - 1]) or i
    local key = KEYS[n]
    local tat, part, rest
    local state = latest[key] or stored[n]
    local fresh = not state
    if front and fresh then
      state, tat, part, rest = '', now, 0, ''
    elseif front then
      local a, p
      a, p, tat, part, rest = match(state, '^t%d* (%d+) (%d+) (%d+) (%d+)([ %d]*,?m?[ %d]*)$')
      if a == amount and p == period then
        tat, part = tonumber(tat), tonumber(part)
        if tat < now then
          tat, part = now, 0
        end
      else
        tat = nil
      end
    end
    if not tat then
      plan = plan or {verb = verb, wait = tonumber(ARGV[at - 4]), q = tonumber(q), k = tonumber(k), at = at}
      replies[n] = false
      undecided[#undecided + 1] = n
      undecided[#undecided + 1] = plan
    else
      tat, part = tat + cost, part + cost_part
      if part >= parts then
        tat, part = tat + 1, part - parts
      end
      if tat < last or (tat == last and part <= last_part) then
        state = front .. format('%.0f', tat) .. (part == 0 and ' 0' or format(' %.0f', part)) .. rest
        if reserves and not find(rest, 'm', 1, true) then
          state = state .. ',m ' .. format('%.0f', now)
        end
        local done
        if fresh then
          done = pcall_redis('SET', key, state, 'PX', ceil((tat - now) / 1000) + 2, 'NX') or {err = FOREIGN}
        else
          done = pcall_redis('SET', key, state, 'PX', ceil((tat - now) / 1000) + 2)
        end
        if done.err then
          replies[n] = {'error', done.err}
        else
          latest[key], replies[n] = state, granted .. state
        end
      else
        replies[n] = denied .. state
      end
    end
  end
  if listed then
    arg = arg + count
  end
end
if #undecided == 0 then
  return replies
end
