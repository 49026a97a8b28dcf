-- wrk: one POST over and over. The body stands in LOAD_BODY, "Name: value" lines in LOAD_HEADERS, session ids that take turns in
-- LOAD_SESSIONS, one a line; the summary is one line of JSON.
local function read(path)
  local file = assert(io.open(path, "rb"))
  local content = file:read("*a")
  file:close()
  return content
end

wrk.method = "POST"
wrk.body = read(os.getenv("LOAD_BODY"))
for name, value in read(os.getenv("LOAD_HEADERS")):gmatch("([^:\n]+): ([^\n]*)") do
  wrk.headers[name] = value
end

local sessions, requests, sent = {}, {}, 0
for session in read(os.getenv("LOAD_SESSIONS")):gmatch("[^\n]+") do
  sessions[#sessions + 1] = session
end

if #sessions > 0 then
  -- The address is not known before wrk calls this.
  function init()
    for place = 1, #sessions do
      wrk.headers["Mcp-Session-Id"] = sessions[place]
      requests[place] = wrk.format()
    end
  end

  function request()
    sent = sent + 1
    return requests[sent % #requests + 1]
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  local form = 'SUMMARY {"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "failed": %d}\n'
  io.write(form:format(summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, failed))
end
