-- Takes what is left of the batch, decision by decision, in the order in which they were asked for.

local decide = {A = acquire, N = renew, R = release, B = break_lock}
for i = 1, #undecided do
  local n, key, arg = undecided[i].n, undecided[i].key, undecided[i].arg
  local ok, reply = pcall(decide[ARGV[arg]], KEYS[key], KEYS[key + 1], KEYS[key + 2], ARGV[arg + 1],
    ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 4])
  if ok then
    replies[n] = reply
  else
    replies[n] = {3, type(reply) == 'table' and reply.err or tostring(reply)}
  end
end
return replies
