// Uses a server through the official npm client and prints what it saw, one JSON object a line.
//
//     node client.mjs FOLDER http URL              everything
//     node client.mjs FOLDER stdio COMMAND ...     everything
//     node client.mjs FOLDER farewell URL          how a listen stream ends that the server closes
//     node client.mjs FOLDER outdated URL          what a client of 2025 is told where only the current protocol is spoken
//
// FOLDER holds node_modules/@modelcontextprotocol/client. client.py does the same with the official Python client;
// test_real_clients.py holds both to the same facts.
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';
import { performance } from 'node:perf_hooks';

const [folder, kind, ...rest] = process.argv.slice(2);
const require = createRequire(join(resolve(folder), 'any.js'));
const { Client, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client');
const { StdioClientTransport } = require('@modelcontextprotocol/client/stdio');

const MODERN = '2026-07-28';
const PATIENCE = 30_000; // ms for any one step

const say = (step, facts = {}) => console.log(JSON.stringify({ step, ...facts }));
const target = () =>
    kind === 'stdio'
        ? new StdioClientTransport({ command: rest[0], args: rest.slice(1) })
        : new StreamableHTTPClientTransport(new URL(rest[0]));

// Code, text and data of the protocol error that a call must end in.
async function refusal(call) {
    try {
        await call;
        return { code: null };
    } catch (error) {
        return { code: error.code, message: error.message, data: error.data };
    }
}

async function discover(client) {
    say('discover', {
        version: client.getNegotiatedProtocolVersion(),
        era: client.getProtocolEra(),
        server: client.getServerVersion(),
        instructions: client.getInstructions(),
        capabilities: client.getServerCapabilities(),
    });
}

async function lists(client) {
    const { tools } = await client.listTools();
    say('tools', { names: tools.map(tool => tool.name), first: tools[0] });
    say('resources', { uris: (await client.listResources()).resources.map(resource => resource.uri) });
    say('templates', { uris: (await client.listResourceTemplates()).resourceTemplates.map(template => template.uriTemplate) });
    say('prompts', { prompts: (await client.listPrompts()).prompts });
}

async function calls(client) {
    say('call', { result: await client.callTool({ name: 'add', arguments: { a: 2, b: 3 } }) });
    const notes = [];
    const onprogress = ({ progress, total, message }) => notes.push([progress, total, message]);
    const counted = await client.callTool({ name: 'count', arguments: { to: 3 } }, { onprogress });
    say('progress', { notes, text: counted.content[0].text });
    say('header', { text: (await client.callTool({ name: 'seat', arguments: { row: 'Süd' } })).content[0].text });
    const numbers = Array.from({ length: 20 }, (_, number) => number);
    const answers = await Promise.all(numbers.map(number => client.callTool({ name: 'double', arguments: { number } })));
    say('concurrent', { answers: answers.map(answer => answer.structuredContent) });
}

async function reads(client) {
    say('read', { contents: (await client.readResource({ uri: 'stage://tickets' })).contents });
    say('read_binary', { contents: (await client.readResource({ uri: 'stage://poster' })).contents });
    say('read_template', { contents: (await client.readResource({ uri: 'stage://cast/hamlet' })).contents });
    say('prompt', { messages: (await client.getPrompt({ name: 'review', arguments: { play: 'Hamlet' } })).messages });
    const play = { ref: { type: 'ref/prompt', name: 'review' }, argument: { name: 'play', value: 'H' } };
    say('complete', { values: (await client.complete(play)).completion.values });
    const role = { ref: { type: 'ref/resource', uri: 'stage://cast/{role}' }, argument: { name: 'role', value: 'g' } };
    say('complete_template', { values: (await client.complete(role)).completion.values });
}

async function errors(client) {
    say('unknown_tool', await refusal(client.callTool({ name: 'no_such_tool', arguments: {} })));
    say('unknown_prompt', await refusal(client.getPrompt({ name: 'no_such_prompt', arguments: {} })));
    say('missing_resource', await refusal(client.readResource({ uri: 'stage://cast/ghost' })));
    say('bad_argument', { result: await client.callTool({ name: 'add', arguments: { a: 'two' } }) });
    say('tool_error', { result: await client.callTool({ name: 'refuse', arguments: {} }) });
    say('crash', await refusal(client.callTool({ name: 'crash', arguments: {} })));
}

async function cancel(client) {
    const aborter = new AbortController();
    const running = Promise.withResolvers === undefined ? deferred() : Promise.withResolvers();
    const options = { signal: aborter.signal, onprogress: () => running.resolve() };
    const held = client.callTool({ name: 'hold', arguments: { name: 'node' } }, options).catch(error => error);
    await running.promise;
    const began = performance.now();
    aborter.abort();
    const answer = await client.callTool({ name: 'released', arguments: {} });
    const seconds = (performance.now() - began) / 1000;
    say('cancel', { name: answer.content[0].text, seconds, rejected: (await held) instanceof Error });
}

function deferred() {
    const parts = {};
    parts.promise = new Promise(resolvePromise => (parts.resolve = resolvePromise));
    return parts;
}

async function listen(client) {
    const queue = [];
    let wake = deferred();
    const heard = (name, uri) => {
        queue.push([name, uri]);
        wake.resolve();
        wake = deferred();
    };
    client.setNotificationHandler('notifications/tools/list_changed', () => heard('ToolsListChanged'));
    client.setNotificationHandler('notifications/resources/updated', ({ params }) => heard('ResourceUpdated', params.uri));
    const next = async () => {
        while (queue.length === 0) await wake.promise;
        return queue.shift();
    };
    const stream = await client.listen({ toolsListChanged: true, resourceSubscriptions: ['stage://tickets'] });
    await client.callTool({ name: 'announce', arguments: { name: 'encore' } });
    const [first] = await next();
    const names = (await client.listTools({}, { cacheMode: 'refresh' })).tools.map(tool => tool.name);
    await client.callTool({ name: 'sell', arguments: {} });
    const [second, uri] = await next();
    await stream.close();
    say('listen', { honored: stream.honoredFilter, first, second, uri, listed: names.includes('encore'), closed: await stream.closed });
}

async function within(name, work) {
    let timer;
    const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(`${name} took over ${PATIENCE} ms`)), PATIENCE)));
    await Promise.race([work, late]).finally(() => clearTimeout(timer));
}

async function connected(mode, work) {
    const client = new Client({ name: 'callboard-e2e', version: '1.0.0' }, { versionNegotiation: { mode } });
    if (mode !== 'legacy') client.onerror = error => say('client_error', { message: String(error) });
    await client.connect(target());
    try {
        await work(client);
    } finally {
        const leaving = performance.now();
        await client.close();
        say('left', { seconds: (performance.now() - leaving) / 1000 });
    }
}

const lines = [];
const log = (client, meta) => {
    client.setNotificationHandler('notifications/message', ({ params }) => lines.push([params.level, params.data, params.logger]));
    return client.callTool({ name: 'log', arguments: { line: meta ? 'asked' : 'unasked' }, ...(meta && { _meta: meta }) });
};

async function farewell(client) {
    const stream = await client.listen({ toolsListChanged: true });
    say('farewell', { events: 0, end: await stream.closed });
}

async function everything() {
    // First as applications do it: ask the server what it speaks; then held to the version.
    await connected('auto', async client => {
        for (const step of [discover, lists, calls, reads, errors, cancel, listen]) await within(step.name, step(client));
        await log(client);
        say('no_logs', { lines });
    });
    await connected({ pin: MODERN }, async client => {
        const result = await client.callTool({ name: 'add', arguments: { a: 1, b: 1 } });
        say('pinned', { version: client.getNegotiatedProtocolVersion(), result });
        await log(client, { 'io.modelcontextprotocol/logLevel': 'info' });
        say('logs', { lines });
    });
    await connected('legacy', async client => {
        const result = await client.callTool({ name: 'add', arguments: { a: 2, b: 2 } });
        say('legacy', { version: client.getNegotiatedProtocolVersion(), result });
    });
}

const runs = {
    farewell: () => connected('auto', client => within('farewell', farewell(client))),
    outdated: async () => say('outdated', await refusal(within('outdated', connected('legacy', () => {})))),
};
await (runs[kind] ?? everything)();
say('end');
