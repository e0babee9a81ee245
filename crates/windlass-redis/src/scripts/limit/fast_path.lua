-- Decides on rate limiters, many requests in one call. This file: the arguments, and the fast path.
--
--   KEYS        for each request: the state of its limiter; then for each H and S its hold
--   ARGV[1]     the number of plans that follow. A plan is what several requests of a batch share:
--                 verb: T take (or reserve), L lend (prefetch), R return, C cancel, P peek, H hold, S settle
--                 wait: for T how many microseconds the caller would wait; for L how many the units are
--                   lent; for R when they were lent; for H for how many milliseconds the hold is kept
--                 q, k: the number of quotas, the number of amounts
--                 the number of requests
--                 q times: kind, amount, period, full (2 numbers), lend time, limit
--                   kind t token bucket, z bucket without refill, f fixed window, s sliding window, l sliding log
--                   full: how long an empty bucket takes to fill (us, parts); else the limit, 0
--                   limit: stored with the state, for listings
--                 k times, in the order in which they are tried: for each quota the cost of the amount
--                   (2 numbers: us and parts for t; else units, 0)
--                 for R and C: the mark of the state that the units came from; for R also for how long
--                   they were lent
--                 for C, for each quota: the bucket's time after the reservation (2 numbers)
--                 for H and S: the index of the hold's key; for each quota its units
--                 the indexes of its requests, from 1; left out if one plan serves all
--   returns     for each request "<k> <now> <state>": the index of the granted amount, from 1, or 0; the time in
--               microseconds; and the stored state of the limiter ("" for none). For T with one amount, a
--               sliding log is shortened to what its status for that amount depends on. For H also "E" if
--               the owner has a hold. For S "N" if there is no such hold, "D" if it is settled, "Q" if it has
--               other quotas; else "<estimate>:<us>:<parts>,... <now> <state>", with what was refunded to each
--               quota, or charged in addition (us and parts for t; else units, 0)
--
-- A state has for each quota, separated by commas,
--   t<limit> <amount> <period> <tat us> <tat parts> [<lent since> <lent before> <lent now>] [r<refunds>]
--   z<limit> <used>  |  f<limit> <period> <start> <count> [<end>]
--   s<limit> <period> <start> <count before> <count>
--   l<limit> <period> [<units> <first time> <last time> <units> {<time since the one before> <units>}]
-- where the refunds to holds are the total, then {:<time of the hold>:<amount>}, and the limit is that of the last client that changed the state (empty if unknown); then, if
-- units were ever lent, reserved or held, the mark: m <time of the first loan, reservation or hold>. It
-- expires when it equals a fresh state. A hold is "<time> <mark>" and for each quota
--   ,t <units> <cost us> <cost parts> <amount> <period> <tat us> <tat parts> <refunded>
--   ,z <units>  |  ,f <units> <period>  |  ,s <units> <period>  |  ,l <units> <period>
-- or "s" once it is settled. The rules are in windlass-core, rules/limit; a part is one
-- amount-th of a microsecond. All numbers stay below 2^53, where Lua is exact.
--
-- Atomic because a concurrent request must not come between the check of the quotas and the charge.
-- Inner calls: TIME and MGET once; SET for each granted request. MGET returns nil for a key of
-- another type, so a new state is stored with NX.
--
-- The fast path covers most requests: take one amount from one token bucket. It is one flat loop,
-- because each function that a script defines costs Redis as much as a command. What it does not
-- cover goes to decide.lua.

local pcall_redis, match, format = redis.pcall, string.match, string.format
local ceil, find = math.ceil, string.find
local FOREIGN = 'WRONGTYPE not a state of a limiter'
local time = pcall_redis('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = ' ' .. format('%.0f', now) .. ' '
local granted, denied = '1' .. stamp, '0' .. stamp
local replies, undecided = {}, {}
-- Several requests may have the same key: the last stored state counts.
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
    arg = arg + 2
  elseif verb == 'H' or verb == 'S' then
    arg = arg + q + 1
  end
  local cost, cost_part = ARGV[at + 7], ARGV[at + 8]
  local plan, amount, period, front, last, last_part, parts, reserves, full
  if verb == 'T' and q == '1' and k == '1' and ARGV[at] == 't' and (cost ~= '0' or cost_part ~= '0') then
    amount, period = ARGV[at + 1], ARGV[at + 2]
    front, parts = 't' .. ARGV[at + 6] .. ' ' .. amount .. ' ' .. period .. ' ', tonumber(amount)
    last, last_part = now + ARGV[at - 4] + ARGV[at + 3], tonumber(ARGV[at + 4])
    cost, cost_part = tonumber(cost), tonumber(cost_part)
    reserves, full = ARGV[at - 4] ~= '0', now + ARGV[at + 3] + 1
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
      a, p, tat, part, rest = match(state, '^t%d* (%d+) (%d+) (%d+) (%d+)([ %d:r]*,?m?[ %d]*)$')
      if a == amount and p == period then
        tat, part = tonumber(tat), tonumber(part)
        if tat < now then
          tat, part = now, 0
        elseif tat > full then
          -- Reserved, or written by a clock that was ahead.
          tat = nil
        end
        if rest ~= '' then
          local since, mark = match(rest, '^ (%d+)'), match(rest, 'm (%d+)')
          -- Holds get no refund after a reservation, so decide.lua has to know of it.
          if (since and tonumber(since) > now) or (mark and tonumber(mark) > now)
            or (reserves and find(rest, 'r', 1, true)) then
            tat = nil
          end
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
