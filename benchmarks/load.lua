-- wrk: one POST over and over. The body stands in LOAD_BODY, "Name: value" lines in LOAD_HEADERS; the summary is one line of JSON.
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

function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  local form = 'SUMMARY {"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "failed": %d}\n'
  io.write(form:format(summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, failed))
end
