-- Decides on limiters, many in one call.
--
--   KEYS        for each decision: the limiter's state
--   ARGV[1]     how many plans follow. A plan is what many decisions of a batch share:
--                 verb: T take (or reserve), L lend, R return, C cancel, P peek
--                 wait: for T how many microseconds the caller would wait; for R when it was lent
--                 q, k: how many quotas, how many amounts
--                 q times: kind, amount, period, full (2 numbers), lend time
--                   kind t token bucket, z one into which nothing comes in, f fixed, s sliding window
--                   full: how long an empty bucket takes to fill (us, parts); else the limit, 0
--                 k times, in the order in which they are tried: for each quota the amount's cost
--                   (2 numbers: us and parts for t; else units, 0)
--                 for C, for each quota: the bucket's time after the reservation (2 numbers)
--   ARGV[…]     for each decision: the number of its plan
--   returns     for each decision "<k> <now> <state>": which amount was granted, from 1, or 0; the time
--               in microseconds; and what is stored for the limiter ("" for nothing)
--
-- A state has for each quota, separated by commas,
--   t <amount> <period> <tat us> <tat parts> [<lent since> <lent before> <lent now>]
--   z <used>  |  f <start> <count>  |  s <start> <count before> <count>
-- and expires when it is as if it had never been. See "rules/limit" for what they mean; a part is one
-- amount-th of a microsecond. All numbers stay below 2^53, where Lua counts exactly.
--
-- Atomic because "is there room" and "now there is less" must not be parted, for any of the quotas.
-- Inner calls: TIME once; for each decision GET, and SET if allowed.
--
-- First what most decisions are: to take one amount from one bucket. They are decided in one flat pass,
-- because each function that a script defines costs Redis as much as a command does.

local pcall_redis, format, match, sub = redis.pcall, string.format, string.match, string.sub
local ceil = math.ceil
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local granted, denied = format('1 %.0f ', now), format('0 %.0f ', now)
local replies, undecided, plans = {}, {}, {}
local arg = 2
for i = 1, tonumber(ARGV[1]) do
  local verb, wait, q, k = ARGV[arg], ARGV[arg + 1], tonumber(ARGV[arg + 2]), tonumber(ARGV[arg + 3])
  local plan = {verb = verb, wait = tonumber(wait), q = q, k = k, at = arg + 4}
  local something = ARGV[arg + 10] ~= '0' or ARGV[arg + 11] ~= '0'
  if verb == 'T' and q == 1 and k == 1 and ARGV[arg + 4] == 't' and something then
    plan.common = 't ' .. ARGV[arg + 5] .. ' ' .. ARGV[arg + 6] .. ' '
    plan.amount = tonumber(ARGV[arg + 5])
    plan.latest, plan.latest_part = now + wait + ARGV[arg + 7], tonumber(ARGV[arg + 8])
    plan.cost, plan.cost_part = tonumber(ARGV[arg + 10]), tonumber(ARGV[arg + 11])
  end
  plans[i] = plan
  arg = arg + 4 + 6 * q + 2 * q * k
  if verb == 'C' then
    arg = arg + 2 * q
  end
end
for n = 1, #KEYS do
  local plan = plans[tonumber(ARGV[arg])]
  arg = arg + 1
  local front, reply = plan.common
  if front then
    local key = KEYS[n]
    local state = pcall_redis('GET', key)
    local tat, part, rest
    if not state then
      state, tat, part, rest = '', now, 0, ''
    elseif type(state) == 'string' and sub(state, 1, #front) == front then
      tat, part, rest = match(state, '^(%d+) (%d+)([ %d]*)$', #front + 1)
      tat, part = tonumber(tat), tonumber(part)
      if tat and tat < now then
        tat, part = now, 0
      end
    end
    if tat then
      tat, part = tat + plan.cost, part + plan.cost_part
      if part >= plan.amount then
        tat, part = tat + 1, part - plan.amount
      end
      if tat < plan.latest or (tat == plan.latest and part <= plan.latest_part) then
        state = front .. format('%.0f %.0f', tat, part) .. rest
        local stored = pcall_redis('SET', key, state, 'PX', ceil((tat - now) / 1000) + 2)
        reply = stored.err and {3, stored.err} or granted .. state
      else
        reply = denied .. state
      end
    end
  end
  if reply then
    replies[n] = reply
  else
    replies[n] = false
    undecided[#undecided + 1] = n
    undecided[#undecided + 1] = plan
  end
end
if #undecided == 0 then
  return replies
end
