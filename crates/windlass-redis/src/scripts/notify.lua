-- Notifies the subscribers of what a key stores. Keys::notifications names the same channel: a
-- prefix before "windlass:" stays in front.
local function notify(key)
  redis.pcall('PUBLISH', string.gsub(key, 'windlass:', 'windlass:news:windlass:', 1), '')
end

