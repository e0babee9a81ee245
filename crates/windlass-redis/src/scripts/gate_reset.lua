-- Forgets the highest fence that was admitted.
--
--   KEYS     the gate
--   returns  the highest fence, or false if there is none
--
-- Not GETDEL, which users would need another permission for.

local seen = redis.call('GET', KEYS[1])
redis.call('DEL', KEYS[1])
return seen
