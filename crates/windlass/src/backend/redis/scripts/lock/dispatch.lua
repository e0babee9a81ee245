-- Takes the batch, decision by decision, in the order in which they were asked for.

local arity = {A = 3, N = 3, R = 1, B = 0}
local decide = {A = acquire, N = renew, R = release, B = break_lock}
local replies = {}
local key, arg, n, last = 2, 2, 0, #ARGV
while arg < last do
  local letter, owner = ARGV[arg], ARGV[arg + 1]
  local ok, reply = pcall(decide[letter], KEYS[key], KEYS[key + 1], KEYS[key + 2], owner,
    ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 4])
  n = n + 1
  if ok then
    replies[n] = reply
  else
    replies[n] = {3, type(reply) == 'table' and reply.err or tostring(reply)}
  end
  key = key + 3
  arg = arg + 2 + arity[letter]
end
return replies
