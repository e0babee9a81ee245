-- Decides what the fast path left of the batch, in order.

local decide = {
  acquire = acquire, renew = renew, release = release, break_lock = break_lock, confirm = confirm, requeue = requeue,
}
for i = 1, #undecided do
  local n, key, arg = undecided[i].n, undecided[i].key, undecided[i].arg
  local ok, reply = pcall(decide[ARGV[arg]], KEYS[key], KEYS[key + 1], KEYS[key + 2], ARGV[arg + 1],
    ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 4], ARGV[arg + 5], ARGV[arg + 6])
  if ok then
    replies[n] = reply
  else
    replies[n] = {'error', type(reply) == 'table' and reply.err or tostring(reply)}
  end
end
return replies
