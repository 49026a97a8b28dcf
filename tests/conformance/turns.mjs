// Loaded before the suite, where it tests a fleet: each request goes over a connection of its own, to another worker than the request before.
// The suite's clients would keep a connection alive, and with it one worker. Who takes a new one is chance, so it is asked who did, until it was
// another one. The suite's own request is the second on that connection, and nothing about it is changed.
import { once } from 'node:events';
import http from 'node:http';
import { createRequire } from 'node:module';
import { connect } from 'node:net';

const { Agent, setGlobalDispatcher } = createRequire(process.argv[1])('undici');
const TRIES = 500;
const VERSION = '2026-07-28';
const meta = {
  'io.modelcontextprotocol/protocolVersion': VERSION,
  'io.modelcontextprotocol/clientInfo': { name: 'turns', version: '0' },
  'io.modelcontextprotocol/clientCapabilities': {},
};
const body = JSON.stringify({ jsonrpc: '2.0', id: 0, method: 'tools/call', params: { name: 'which_worker', arguments: {}, _meta: meta } });

async function ask(socket, port) {
  const head = [
    'POST /mcp HTTP/1.1',
    `host: 127.0.0.1:${port}`,
    'content-type: application/json',
    'accept: application/json, text/event-stream',
    `mcp-protocol-version: ${VERSION}`,
    'mcp-method: tools/call',
    'mcp-name: which_worker',
    `content-length: ${body.length}`,
  ];
  socket.write(`${head.join('\r\n')}\r\n\r\n${body}`);
  for (let answer = ''; ;) {
    await once(socket, 'readable');
    for (let piece; (piece = socket.read()) !== null;) answer += piece;
    const [headers, text = ''] = answer.split('\r\n\r\n');
    if (text.length === Number(/content-length: (\d+)/i.exec(headers)?.[1])) return JSON.parse(text).result.content[0].text;
    if (socket.readableEnded) throw new Error(`no worker says who it is: ${answer}`);
  }
}

let last;
async function another(port) {
  for (let left = TRIES; left; left--) {
    const socket = connect({ host: '127.0.0.1', port, noDelay: true });
    const worker = await ask(socket, port);
    if (worker !== last) {
      last = worker;
      return socket;
    }
    socket.destroy();
  }
  throw new Error(`worker ${last} took each of ${TRIES} connections`);
}

let turn = Promise.resolve();
function take({ port }, done) {
  const taken = turn.then(() => another(port));
  turn = taken.catch(() => {});
  taken.then((socket) => done(null, socket), done);
}

class Turns extends Agent {
  dispatch(options, handler) {
    return new Agent({ connect: take }).dispatch(options, handler);
  }
}

setGlobalDispatcher(new Turns());
http.globalAgent.createConnection = (options, done) => void take(options, done);
http.globalAgent.maxFreeSockets = 0;
