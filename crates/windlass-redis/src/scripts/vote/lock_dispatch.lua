-- Takes what is left of the batch, decision by decision, in the order in which they were asked for.

local decide = {A = acquire, N = renew, R = release, B = break_lock, D = confirm, Y = line_up_again}
local proposes = {A = 5, D = 5, Y = 5}
for i = 1, #undecided do
  local n, key, arg = undecided[i].n, undecided[i].key, undecided[i].arg
  local letter = ARGV[arg]
  proposal = proposes[letter] and tonumber(ARGV[arg + proposes[letter]])
  local ok, reply = pcall(decide[letter], KEYS[key], KEYS[key + 1], KEYS[key + 2], ARGV[arg + 1],
    ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 4])
  if ok then
    replies[n] = reply
  else
    replies[n] = {3, type(reply) == 'table' and reply.err or tostring(reply)}
  end
end
return replies
