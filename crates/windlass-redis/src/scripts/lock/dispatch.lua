-- Decides what the fast path left of the batch, in order.

local decide = {
  [65] = acquire, [82] = release, [78] = renew, [66] = break_lock, [67] = confirm, [81] = requeue,
}
local next_claim = string.gmatch(ARGV[5], '%d+')
local argument = count + 6
for n = 1, count do
  local verb, ok, reply = string.byte(verbs, n), true, replies[n]
  local is_short_acquire = verb == 97 or verb == 116
  local claim = is_short_acquire and next_claim()
  if not reply then
    local lock, queue, owner = KEYS[n + 1], KEYS[count + 1 + n], ARGV[n + 5]
    local prefix = record_prefix(n)
    if is_short_acquire then
      ok, reply = pcall(acquire, lock, queue, prefix, owner, ARGV[3], verb == 97 and 'q' or '',
        ARGV[4] .. ' ' .. claim .. ' ', ARGV[argument])
    elseif verb == 114 then
      ok, reply = pcall(release, lock, queue, prefix, owner, '')
    else
      ok, reply = pcall(decide[verb], lock, queue, prefix, owner, ARGV[argument], ARGV[argument + 1],
        ARGV[argument + 2], ARGV[argument + 3], ARGV[argument + 4])
    end
    if not ok then
      reply = {'error', type(reply) == 'table' and reply.err or tostring(reply)}
    end
    replies[n] = reply
  end
  argument = argument + arguments[verb]
end
return replies
