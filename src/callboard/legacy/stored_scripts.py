"""The Lua of `stored_redis.py`: each script is one step that nobody sees half done.

A session is one hash, so that it has one slot in a cluster and one expiry. Its fields:

    r, v, w     record, its revision, news
    x           `ttl`, milliseconds
    s           state
    n           numbers taken
    q, l        queue for the turn: each ticket with a blank behind it; the ticket that left with its turn last
    g, c        readers of `g0`, in the same way; number of its newest event
    t<track>    of a call's track: newest number, whether it is over (0 or 1), who runs the call, who follows; blanks between them.
                One that is over stays as long as its last event; one that had a single event and was not begun before has none.
    e<id>       note of an event; its id is `<track>-<number>`
    o, m, z     ids of the events that are kept, oldest first, each with a blank behind it and, if it is the last of its track, a `!` before
                that; how many; bytes of their notes

The hash expires a minute (`GRACE`) after the session's time is up: what is left of that minute says whether it is. The index of all
sessions is a sorted set, session id and owner by the time when to look at it, and a hash, owner to number of sessions; both in a slot of
their own.

Messages are written as `stored.py` reads them: MessagePack, here in its longest forms.
"""

from __future__ import annotations

from callboard.legacy.session import MAX_KEPT
from callboard.stores.redis_script import Script

__all__ = [
    "APPEND",
    "CHANGE",
    "CREATE",
    "END",
    "ENTER",
    "EVICT",
    "FAIL_TRACK",
    "FIND",
    "FOLLOW",
    "GRACE",
    "LEAVE",
    "LEAVE_ANSWERING",
    "LEAVE_READER",
    "LOOK",
    "LOOK_AGAIN",
    "NUMBER",
    "PUSH",
    "RELEASE",
    "TAKE_PLACE",
    "TAKE_READER",
    "TOUCH",
]

# Milliseconds that a session stays in Redis when its time is up and no worker is there to end it.
GRACE = 60_000

# Where not said otherwise: KEYS[1] is the session, ARGV[1] its id as it is told, ARGV[2] what the name of a worker's channel begins with.
_TELL = r"""
local key, sid, channels = KEYS[1], ARGV[1], ARGV[2]
local function text(value) return '\219' .. struct.pack('>I4', #value) .. value end
local function tell(worker, head, name, rest)
    redis.call('PUBLISH', channels .. worker, head .. text(sid) .. text(name) .. (rest or ''))
end
local function owner_of(name) return string.match(name, '^[^:]*') end
local function first_of(line) return string.match(line, '^%S+') end
local function without(line, name)
    local from, to = string.find(' ' .. line, ' ' .. name .. ' ', 1, true)
    return from and string.sub(line, 1, from - 1) .. string.sub(line, to), from == 1
end
local function keep_line(field, line)
    if line == '' then redis.call('HDEL', key, field) else redis.call('HSET', key, field, line) end
end
"""

_EVENTS = (
    _TELL
    + r"""
local function tell_event(worker, track, number, note, last)
    local size = struct.pack('>I4', #note)
    tell(worker, '\150\165event', track, '\206' .. struct.pack('>I4', number) .. '\198' .. size .. note .. (last and '\195' or '\194'))
end
local function keep_event(track, number, note, last, most)
    if most == 0 then return end
    local id = track .. '-' .. number
    local kept = redis.call('HMGET', key, 'o', 'm', 'z')
    local order, many, size = (kept[1] or '') .. id .. (last and '! ' or ' '), (kept[2] or 0) + 1, (kept[3] or 0) + #note
    while many > most or (size > MAX_KEPT and many > 1) do
        local stop = string.find(order, ' ', 1, true)
        local gone = string.sub(order, 1, stop - 1)
        order = string.sub(order, stop + 1)
        if string.sub(gone, -1) == '!' then
            gone = string.sub(gone, 1, -2)
            redis.call('HDEL', key, 't' .. string.match(gone, '^(.*)%-'))
        end
        size, many = size - redis.call('HSTRLEN', key, 'e' .. gone), many - 1
        redis.call('HDEL', key, 'e' .. gone)
    end
    redis.call('HSET', key, 'e' .. id, note, 'o', order, 'm', many, 'z', size)
end
local function track_of(track)
    local found = redis.call('HGET', key, 't' .. track)
    if not found then return nil end
    local newest, over, worker, follower = string.match(found, '^(%d+) (%d) (%S*) (%S*)$')
    return {newest = tonumber(newest), over = over == '1', worker = worker, follower = follower}
end
local function keep_track(track, found)
    local line = string.format('%d %s %s %s', found.newest, found.over and '1' or '0', found.worker, found.follower)
    redis.call('HSET', key, 't' .. track, line)
end
local function append(track, first, last, worker, most, from, to)
    local before = track_of(track)
    local found = before
    if not found then
        if first ~= 1 then return 0 end
        if redis.call('HEXISTS', key, 'e' .. track .. '-1') == 1 then return to <= from and 1 or 0 end
        found = {newest = 0, over = false, worker = worker, follower = ''}
    end
    local stop = first + to - from
    if found.worker ~= worker or first > found.newest + 1 or (found.over and stop > found.newest) then return 0 end
    if found.over then return 1 end
    for number = found.newest + 1, stop do
        local note, is_last = ARGV[from + number - first], last and number == stop
        if found.follower ~= '' then tell_event(found.follower, track, number, note, is_last) end
        keep_event(track, number, note, is_last, most)
        found.newest, found.over = number, is_last
    end
    if found.over and (most == 0 or (not before and found.newest == 1)) then
        if before then redis.call('HDEL', key, 't' .. track) end
    else
        keep_track(track, found)
    end
    return 1
end
local function kept(answer, track, after, newest)
    for number = newest, after + 1, -1 do
        local note = redis.call('HGET', key, 'e' .. track .. '-' .. number)
        if not note then break end
        answer[#answer + 1] = note
    end
    return answer
end
"""
).replace("MAX_KEPT", str(MAX_KEPT))

_REACH = """
local function reach(key, ttl) redis.call('PEXPIRE', key, ttl + GRACE) end
""".replace("GRACE", str(GRACE))

# ARGV: record, news, ttl, state if there is one. Whether there was none of this id.
CREATE = Script(
    _REACH
    + r"""
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'r', ARGV[1], 'v', 1, 'w', ARGV[2], 'x', ARGV[3])
if ARGV[4] then redis.call('HSET', KEYS[1], 's', ARGV[4]) end
reach(KEYS[1], ARGV[3])
return 1
"""
)

# ARGV: 1 for its time begins anew. Record, revision, news.
FIND = Script(
    _REACH
    + r"""
local found = redis.call('HMGET', KEYS[1], 'r', 'v', 'w', 'x')
if not found[1] then return false end
if ARGV[1] == '1' then reach(KEYS[1], found[4]) end
return {found[1], tonumber(found[2]), found[3]}
"""
)

TOUCH = Script(
    _REACH
    + r"""
local ttl = redis.call('HGET', KEYS[1], 'x')
if ttl then reach(KEYS[1], ttl) end
return 0
"""
)

# ARGV: revision, record, what to tell, to whom.
CHANGE = Script(r"""
if redis.call('HGET', KEYS[1], 'v') ~= ARGV[1] then return false end
redis.call('HSET', KEYS[1], 'r', ARGV[2], 'v', ARGV[1] + 1)
redis.call('PUBLISH', ARGV[4], ARGV[3])
return ARGV[1] + 1
""")

# ARGV: ticket, how many may wait (empty: any number). Nothing: no such session; 0: it waits; 1 and the state: its turn; 2: too many.
ENTER = Script(
    _REACH
    + r"""
local found = redis.call('HMGET', KEYS[1], 'x', 'q')
if not found[1] then return false end
reach(KEYS[1], found[1])
local queue, ticket = found[2] or '', ARGV[1] .. ' '
local at = string.find(' ' .. queue, ' ' .. ticket, 1, true)
if not at then
    if ARGV[2] ~= '' and select(2, string.gsub(queue, ' ', '')) > tonumber(ARGV[2]) then return {2} end
    redis.call('HSET', KEYS[1], 'q', queue .. ticket)
    at = queue == '' and 1
end
if at ~= 1 then return {0} end
local state = redis.call('HGET', KEYS[1], 's')
return state and {1, state} or {1}
"""
)

_LEAVE = r"""
local found = redis.call('HMGET', key, 'x', 'q', 'l')
if not found[1] then return 0 end
reach(key, found[1])
local ticket = ARGV[3]
local queue, was_head = without(found[2] or '', ticket)
if not queue then return found[3] == ticket and 1 or 0 end
local done = 0
if was_head then
    done = 1
    if ARGV[7] then done = append(ARGV[7], tonumber(ARGV[8]), true, owner_of(ticket), tonumber(ARGV[4]), 9, 9) end
    if done == 1 and ARGV[5] == '1' then
        redis.call('HSET', key, 'l', ticket, 's', ARGV[6])
    elseif done == 1 then
        redis.call('HSET', key, 'l', ticket)
    end
end
keep_line('q', queue)
if was_head and queue ~= '' then tell(owner_of(queue), '\147\164turn', first_of(queue)) end
return done
"""

# ARGV: ticket, events that are kept, whether there is a state, the state. 1: its turn. The more functions a script begins with, the longer
# it takes.
LEAVE = Script(_REACH + _TELL + _LEAVE)
# ARGV: the same, then of the answer: its track, number, note.
LEAVE_ANSWERING = Script(_REACH + _EVENTS + _LEAVE)

# ARGV: ticket.
EVICT = Script(
    _TELL
    + r"""
local queue, was_head = without(redis.call('HGET', key, 'q') or '', ARGV[3])
if not was_head then return 0 end
keep_line('q', queue)
if queue ~= '' then tell(owner_of(queue), '\147\164turn', first_of(queue)) end
return 1
"""
)

# ARGV: how many. The first of them; 0 for no such session.
NUMBER = Script(r"""
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
return redis.call('HINCRBY', KEYS[1], 'n', ARGV[1]) - ARGV[1] + 1
""")

# ARGV: events that are kept, track, first number, 1 for the last, worker, notes.
APPEND = Script(
    _EVENTS
    + r"""
if redis.call('EXISTS', key) == 0 then return 0 end
return append(ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7], tonumber(ARGV[3]), 8, #ARGV)
"""
)

# ARGV: events that are kept, note, news. The number, 0 where it was there before.
PUSH = Script(
    _EVENTS
    + r"""
local found = redis.call('HMGET', key, 'x', 'w', 'c', 'g')
if not found[1] then return 0 end
local function parts(position)
    local time, count = string.match(position, '^(%d+)%-?(%d*)$')
    return tonumber(time), tonumber(count) or 0
end
local number = (found[3] or 0) + 1
if ARGV[5] == '' then
    redis.call('HSET', key, 'c', number)
else
    if found[2] ~= '' then
        local time, count = parts(ARGV[5])
        local old_time, old_count = parts(found[2])
        if time < old_time or (time == old_time and count <= old_count) then return 0 end
    end
    redis.call('HSET', key, 'c', number, 'w', ARGV[5])
end
keep_event('g0', number, ARGV[4], false, tonumber(ARGV[3]))
if found[4] then tell_event(owner_of(found[4]), 'g0', number, ARGV[4], false) end
return number
"""
)

# ARGV: track, number, worker. Newest number, who runs it, 1 if it is over, notes from the newest back; nothing where there is none.
FOLLOW = Script(
    _EVENTS
    + r"""
local track, after, worker = ARGV[3], tonumber(ARGV[4]), ARGV[5]
if track == 'g0' then
    local found = redis.call('HMGET', key, 'x', 'c')
    local newest = tonumber(found[2] or 0)
    if not found[1] or after > newest then return false end
    return kept({newest, '', 0}, track, after, newest)
end
local found = track_of(track)
if not found and redis.call('HEXISTS', key, 'e' .. track .. '-1') == 1 then found = {newest = 1, over = true} end
if not found or after > found.newest then return false end
if found.over then return kept({found.newest, '', 1}, track, after, found.newest) end
local before = found.follower ~= '' and found.follower or found.worker
if before ~= worker then tell(before, '\147\165moved', track) end
found.follower = worker ~= found.worker and worker or ''
keep_track(track, found)
return kept({found.newest, found.worker, 0}, track, after, found.newest)
"""
)

# ARGV: events that are kept, track, note. 1 where it was not over.
FAIL_TRACK = Script(
    _EVENTS
    + r"""
local track, most = ARGV[4], tonumber(ARGV[3])
local found = track_of(track)
if not found or found.over then return 0 end
found.newest, found.over, found.worker = found.newest + 1, true, ''
if found.follower ~= '' then tell_event(found.follower, track, found.newest, ARGV[5], true) end
keep_event(track, found.newest, ARGV[5], true, most)
if most == 0 then redis.call('HDEL', key, 't' .. track) else keep_track(track, found) end
return 1
"""
)

# ARGV: token, whether by force, number after which or empty. 1 if it is the reader, newest number, notes from the newest back.
TAKE_READER = Script(
    _EVENTS
    + r"""
local token, after = ARGV[3], tonumber(ARGV[5])
local found = redis.call('HMGET', key, 'x', 'c', 'g')
if not found[1] then return false end
local newest, line = tonumber(found[2] or 0), found[3] or ''
if after and after > newest then return {0, newest} end
local rest, is_head = without(line, token)
if not is_head and ARGV[4] == '1' then
    line = rest or line
    local old = first_of(line)
    if old then
        tell(owner_of(old), '\147\165yield', old)
        line = without(line, old)
    end
    line, is_head = token .. ' ' .. line, true
elseif not rest then
    is_head = line == ''
    line = line .. token .. ' '
end
redis.call('HSET', key, 'g', line)
if is_head and after then return kept({1, newest}, 'g0', after, newest) end
return {is_head and 1 or 0, newest}
"""
)

# ARGV: token.
LEAVE_READER = Script(
    _TELL
    + r"""
local found = redis.call('HMGET', key, 'c', 'g')
local line, was_head = without(found[2] or '', ARGV[3])
if not line then return 0 end
keep_line('g', line)
if was_head and line ~= '' then
    tell(owner_of(line), '\148\164read', first_of(line), '\206' .. struct.pack('>I4', found[1] or 0))
end
return 1
"""
)

# ARGV: 1 for only if its time is up, what to tell, to whom. Record, news, state.
END = Script(
    r"""
local found = redis.call('HMGET', KEYS[1], 'r', 'w', 's')
if not found[1] or (ARGV[1] == '1' and redis.call('PTTL', KEYS[1]) > GRACE) then return false end
redis.call('UNLINK', KEYS[1])
redis.call('PUBLISH', ARGV[3], ARGV[2])
return found[3] and found or {found[1], found[2]}
""".replace("GRACE", str(GRACE))
)

# The index. KEYS: the sorted set, the hash of owners.

_NOW = r"""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

# ARGV: member, owner or empty, most in all, most of one owner, ttl. 1: taken; 0: it has one; else how many there are, how many of the
# owner.
TAKE_PLACE = Script(
    _NOW
    + r"""
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
local taken, own = redis.call('ZCARD', KEYS[1]), 0
if ARGV[2] ~= '' then own = tonumber(redis.call('HGET', KEYS[2], ARGV[2]) or 0) end
if taken >= tonumber(ARGV[3]) or (ARGV[2] ~= '' and own >= tonumber(ARGV[4])) then return {taken, own} end
redis.call('ZADD', KEYS[1], now + ARGV[5], ARGV[1])
if ARGV[2] ~= '' then redis.call('HINCRBY', KEYS[2], ARGV[2], 1) end
return 1
"""
)

# ARGV: member, owner or empty.
RELEASE = Script(r"""
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 or ARGV[2] == '' then return 0 end
if redis.call('HINCRBY', KEYS[2], ARGV[2], -1) <= 0 then redis.call('HDEL', KEYS[2], ARGV[2]) end
return 1
""")

# ARGV: how many. Members to look at.
LOOK = Script(
    _NOW
    + r"""
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
"""
)

# ARGV: milliseconds and member, in turn: when to look at it again.
LOOK_AGAIN = Script(
    _NOW
    + r"""
for at = 1, #ARGV, 2 do redis.call('ZADD', KEYS[1], 'XX', now + ARGV[at], ARGV[at + 1]) end
return 0
"""
)
