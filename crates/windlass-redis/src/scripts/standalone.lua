-- The first part of a script on a server that decides alone. See quorum_node/prelude.lua for the
-- other case.
local is_quorum_node = false
