// Uses a server as clients of 2025 do, through the official npm client of that time, and prints what it saw, one JSON object a line.
//
//     node legacy_client.mjs FOLDER http URL            everything; URL is that of breaking_proxy.py before the server
//     node legacy_client.mjs FOLDER stdio COMMAND ...   everything that a pipe can carry
//     node legacy_client.mjs FOLDER sse URL             the same over HTTP+SSE, the transport of 2024-11-05
//
// FOLDER holds node_modules/@modelcontextprotocol/sdk. legacy_client.py does the same with the official Python clients;
// test_legacy_clients.py holds all to the same facts.
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';
import { performance } from 'node:perf_hooks';

const [folder, kind, ...rest] = process.argv.slice(2);
const require = createRequire(join(resolve(folder), 'any.js'));
const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js');
const { SSEClientTransport } = require('@modelcontextprotocol/sdk/client/sse.js');

const PATIENCE = 30_000; // ms for any one step
const ROLE = 'stage://cast/{role}';
const say = (step, facts = {}) => console.log(JSON.stringify({ step, ...facts }));
const count = length => Array.from({ length }, (_, number) => number);

// A connection to the server: the official client, what its HTTP side saw (`media`: tool or method -> media type of its answer),
// each notification that arrived, but progress, and what the client complained of.
class Seat {
    media = {};
    heard = [];
    complaints = [];
    waiting = [];

    async take() {
        this.client = new Client({ name: 'callboard-e2e', version: '1.0.0' });
        this.client.onerror = error => this.complaints.push(String(error));
        this.client.fallbackNotificationHandler = async ({ method, params }) => {
            this.heard.push([method, params ?? {}]);
            this.waiting.splice(0).forEach(wake => wake());
        };
        const fetchWatched = async (url, init) => {
            const response = await fetch(url, init);
            this.session = response.headers.get('mcp-session-id') ?? this.session;
            if (init?.method === 'POST') {
                const sent = JSON.parse(init.body);
                this.media[sent.params?.name ?? sent.method] = response.headers.get('content-type') ?? '';
            }
            return response;
        };
        this.transport =
            kind === 'stdio'
                ? new StdioClientTransport({ command: rest[0], args: rest.slice(1) })
                : kind === 'sse'
                  ? new SSEClientTransport(new URL(rest[0]))
                  : new StreamableHTTPClientTransport(new URL(rest[0]), { fetch: fetchWatched });
        await this.client.connect(this.transport);
        return this;
    }

    async hears(method, params = {}) {
        const matches = ([name, found]) => name === method && Object.entries(params).every(([key, value]) => found[key] === value);
        for (;;) {
            const found = this.heard.find(matches);
            if (found) return found[1];
            await new Promise(wake => this.waiting.push(wake));
        }
    }

    async call(name, args = {}) {
        return (await this.client.callTool({ name, arguments: args })).content[0].text;
    }

    // Ends the session as the specification asks; the client itself only hangs up.
    async leave() {
        await this.transport.terminateSession?.();
        await this.client.close();
    }
}

// Code, text and data of the protocol error that a call must end in.
async function refusal(call) {
    try {
        await call;
        return { code: null };
    } catch (error) {
        // The package puts the code before the server's text.
        return { code: error.code, message: error.message.replace(/^MCP error -?\d+: /, ''), data: error.data };
    }
}

async function hello({ client, transport }) {
    say('hello', {
        protocolVersion: transport.protocolVersion, // undefined over stdio
        serverInfo: client.getServerVersion(),
        instructions: client.getInstructions(),
        capabilities: client.getServerCapabilities(),
    });
    say('ping', { result: await client.ping() });
}

async function allTools(client) {
    const tools = [];
    let cursor;
    do {
        const page = await client.listTools({ cursor });
        tools.push(...page.tools);
        cursor = page.nextCursor;
    } while (cursor);
    return tools;
}

async function lists({ client }) {
    const tools = await allTools(client);
    say('tools', { names: tools.map(tool => tool.name), first: tools[0] });
    say('resources', { uris: (await client.listResources()).resources.map(resource => resource.uri) });
    say('templates', { uris: (await client.listResourceTemplates()).resourceTemplates.map(template => template.uriTemplate) });
    say('prompts', { prompts: (await client.listPrompts()).prompts });
}

async function calls(at) {
    const { client } = at;
    say('call', { result: await client.callTool({ name: 'add', arguments: { a: 2, b: 3 } }) });
    const notes = [];
    const onprogress = ({ progress, total, message }) => notes.push([progress, total, message]);
    const counted = await client.callTool({ name: 'count', arguments: { to: 3 } }, undefined, { onprogress });
    say('progress', { notes, text: counted.content[0].text });
    say('header', { text: await at.call('seat', { row: 'Süd' }) });
    const answers = await Promise.all(count(20).map(number => client.callTool({ name: 'double', arguments: { number } })));
    say('concurrent', { answers: answers.map(answer => answer.content[0].text), one: answers[4] });
}

// Twenty calls at once that each add one to what the session remembers.
async function state(at) {
    const counts = await Promise.all(count(20).map(async () => Number(await at.call('tally'))));
    say('state', { counts: counts.sort((a, b) => a - b), after: Number(await at.call('tally')) });
}

async function reads({ client }) {
    const places = { read: 'stage://tickets', read_binary: 'stage://poster', read_template: 'stage://cast/hamlet' };
    for (const [step, uri] of Object.entries(places)) say(step, { contents: (await client.readResource({ uri })).contents });
    say('prompt', { messages: (await client.getPrompt({ name: 'review', arguments: { play: 'Hamlet' } })).messages });
    const play = { ref: { type: 'ref/prompt', name: 'review' }, argument: { name: 'play', value: 'H' } };
    say('complete', { values: (await client.complete(play)).completion.values });
    const role = { ref: { type: 'ref/resource', uri: ROLE }, argument: { name: 'role', value: 'g' } };
    say('complete_template', { values: (await client.complete(role)).completion.values });
}

async function errors({ client }) {
    say('unknown_tool', await refusal(client.callTool({ name: 'no_such_tool', arguments: {} })));
    say('unknown_prompt', await refusal(client.getPrompt({ name: 'no_such_prompt', arguments: {} })));
    say('missing_resource', await refusal(client.readResource({ uri: 'stage://cast/ghost' })));
    say('bad_argument', { result: await client.callTool({ name: 'add', arguments: { a: 'two' } }) });
    say('tool_error', { result: await client.callTool({ name: 'refuse', arguments: {} }) });
    say('crash', await refusal(client.callTool({ name: 'crash', arguments: {} })));
}

async function cancel(at) {
    const aborter = new AbortController();
    let running;
    const started = new Promise(wake => (running = wake));
    const options = { signal: aborter.signal, onprogress: () => running() };
    const held = at.client.callTool({ name: 'hold', arguments: { name: 'node' } }, undefined, options).catch(error => error);
    await started;
    const began = performance.now();
    aborter.abort();
    const name = await at.call('released');
    say('cancel', { name, seconds: (performance.now() - began) / 1000, rejected: (await held) instanceof Error });
}

async function logs(at) {
    await at.call('log', { line: 'by default' });
    await at.client.setLoggingLevel('error');
    await at.call('log', { line: 'errors only' });
    const notes = at.heard.filter(([method]) => method === 'notifications/message');
    say('logs', { lines: notes.map(([, { level, data, logger }]) => [level, data, logger]) });
    await at.client.setLoggingLevel('info');
}

// What the server says on its own account: over HTTP it arrives on the stream of a GET.
async function pushes(at) {
    const uri = 'stage://tickets';
    await at.client.subscribeResource({ uri });
    await at.call('announce', { name: 'encore' });
    await at.hears('notifications/tools/list_changed');
    const listed = (await allTools(at.client)).some(tool => tool.name === 'encore');
    await at.call('sell');
    const updated = await at.hears('notifications/resources/updated');
    await at.call('whisper', { line: 'psst' });
    const whispered = await at.hears('notifications/message', { data: 'psst' });
    await at.call('shout', { line: 'to all' });
    const shouted = await at.hears('notifications/message', { data: 'to all' });
    await at.client.unsubscribeResource({ uri });
    await at.call('sell');
    await at.call('whisper', { line: 'no more' });
    await at.hears('notifications/message', { data: 'no more' });
    const updates = at.heard.filter(([method]) => method === 'notifications/resources/updated').length;
    say('pushes', { listed, updated, whispered, shouted, updates });
}

const proxy = async word => (await fetch(rest[0].replace('/mcp', `/${word}`), { method: 'POST' })).json();

// Cuts the GET's connection, and what is said meanwhile must arrive all the same.
async function reconnect(at) {
    const whisper = async line => {
        await at.call('whisper', { line });
        await at.hears('notifications/message', { data: line });
    };
    await whisper('before');
    const { cut } = await proxy('cut');
    await whisper('meanwhile');
    await whisper('after');
    const { resumed } = await proxy('seen');
    const lines = at.heard.filter(([method]) => method === 'notifications/message').map(([, { data }]) => data);
    say('reconnect', { cut, lines: lines.slice(lines.indexOf('before')), resumed: resumed.length > 0 });
}

// A call whose stream the server closes before it answers.
async function polling({ client }) {
    const notes = [];
    const onprogress = ({ message }) => notes.push(message);
    const result = await client.callTool({ name: 'interval', arguments: {} }, undefined, { onprogress });
    say('polling', { notes, text: result.content[0].text });
}

// How a session ends: its client leaves, or somebody else ends it and the client starts again.
async function farewells(at, former) {
    say('departed', JSON.parse(await at.call('departed')));
    const end = async session => (await fetch(rest[0], { method: 'DELETE', headers: { 'mcp-session-id': session } })).status;
    const status = await end(at.session);
    const again = await end(former.session);
    say('deleted', { status, again, lost: await refusal(at.client.ping()) });
}

async function within(name, work) {
    let timer;
    const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(`${name} took over ${PATIENCE} ms`)), PATIENCE)));
    return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

const first = await within('connect', new Seat().take());
const steps = [hello, lists, calls, state, reads, errors, cancel, logs, pushes];
for (const step of kind === 'http' ? [...steps, reconnect, polling] : steps) await within(step.name, step(first));
const leaving = performance.now();
await within('leave', first.leave());
say('left', { seconds: (performance.now() - leaving) / 1000, complaints: first.complaints });
if (kind === 'http') {
    say('media', first.media);
    const second = await within('connect', new Seat().take());
    await within('farewells', farewells(second, first));
    await second.client.close();
    const third = await within('connect', new Seat().take());
    say('again', { fresh: third.session !== second.session, tally: Number(await third.call('tally')) });
    await within('leave', third.leave());
}
say('end');
