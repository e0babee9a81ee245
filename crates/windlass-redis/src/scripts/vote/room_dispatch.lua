-- Takes what is left of the batch, decision by decision, in the order in which they were asked for.

local decide = {A = acquire, N = renew, R = release, S = shrink, Z = resize, D = confirm, Y = line_up_again}
for i = 1, #undecided do
  local n, key, arg = undecided[i].n, undecided[i].key, undecided[i].arg
  proposal = nil
  local ok, reply = pcall(function()
    local at = begin(KEYS[key], KEYS[key + 1], KEYS[key + 2], ARGV[arg + 1], ARGV[arg + 2])
    local answer = decide[ARGV[arg]](at, ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 4], ARGV[arg + 5],
      ARGV[arg + 6], ARGV[arg + 7])
    finish(at)
    return answer
  end)
  if ok then
    replies[n] = reply
  else
    replies[n] = {3, type(reply) == 'table' and reply.err or tostring(reply)}
  end
end
return replies
