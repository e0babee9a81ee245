-- Decides what the fast path left of the batch, in order.

local decide = {
  acquire = acquire, renew = renew, release = release, shrink = shrink, resize = resize, confirm = confirm,
  requeue = requeue,
}
for i = 1, #undecided do
  local n, key, arg = undecided[i].n, undecided[i].key, undecided[i].arg
  local ok, reply = pcall(function()
    local tx = begin(KEYS[key], KEYS[key + 1], KEYS[key + 2], ARGV[arg + 1], ARGV[arg + 2])
    local answer = decide[ARGV[arg]](tx, ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 4], ARGV[arg + 5],
      ARGV[arg + 6], ARGV[arg + 7])
    commit(tx)
    return answer
  end)
  if ok then
    replies[n] = reply
  else
    replies[n] = {'error', type(reply) == 'table' and reply.err or tostring(reply)}
  end
end
return replies
