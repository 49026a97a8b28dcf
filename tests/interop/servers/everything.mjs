// The everything server of ../cells.py on an npm package.
//
//     node everything.mjs FOLDER stdio
//     node everything.mjs FOLDER http-json PORT       /mcp, which answers with JSON alone
//     node everything.mjs FOLDER http-sse PORT        /mcp, which may answer with a stream
//     node everything.mjs FOLDER sse PORT             /sse, the HTTP+SSE of 2024-11-05, which only the package of 2025 has
//
// FOLDER holds the node_modules with `@modelcontextprotocol/server` and its adapter `@modelcontextprotocol/node`, or with
// `@modelcontextprotocol/sdk`, the package of 2025. Clients of 2025 get sessions from either package.
import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';

const [folder, transport, port] = process.argv.slice(2);
const require = createRequire(join(resolve(folder), 'any.js'));
const FIRST = existsSync(join(resolve(folder), 'node_modules', '@modelcontextprotocol', 'sdk'));
const sdk = FIRST ? '@modelcontextprotocol/sdk/server/' : '@modelcontextprotocol/server';
const { z } = require('zod');
const { McpServer } = require(FIRST ? `${sdk}mcp.js` : sdk);
const { completable } = require(FIRST ? `${sdk}completable.js` : sdk);
const { inputRequired, acceptedContent, createMcpHandler, isLegacyRequest } = FIRST ? {} : require(sdk);

const PATIENCE = 5; // seconds that `watch` waits
const LOOK = 10; // ms between two looks
const BEAT = 20; // ms after a note, so that it travels on its own
const seen = new Set(); // `NAME held`, `NAME released`
const pause = ms => new Promise(done => setTimeout(done, ms));
const text = line => ({ content: [{ type: 'text', text: line }] });
const failure = line => ({ ...text(line), isError: true });
const DRINK = z.object({ kind: z.enum(['tea', 'coffee']), sugar: z.number().int().default(1) });
const QUESTION = {
    message: 'What would you like?',
    requestedSchema: {
        type: 'object',
        properties: { kind: { type: 'string', enum: ['tea', 'coffee'] }, sugar: { type: 'integer', default: 1 } },
        required: ['kind'],
    },
};

// What the two packages name differently.
const request = context => (FIRST ? context : context.mcpReq);
async function report(context, progress, total, message) {
    const { _meta } = request(context);
    if (_meta?.progressToken === undefined) return;
    const note = { method: 'notifications/progress', params: { progressToken: _meta.progressToken, progress, total, message } };
    await (FIRST ? context.sendNotification(note) : context.mcpReq.notify(note));
}

// Where answers are JSON a session of 2025 is asked on the stream of its GET, and nowhere else: there is no other.
async function choose(server, legacy, context) {
    let drink;
    if (FIRST || (legacy && transport === 'http-json')) {
        const related = transport === 'http-json' ? {} : { relatedRequestId: context.requestId };
        drink = (await server.server.elicitInput(QUESTION, related)).content;
    } else {
        drink = acceptedContent(context.mcpReq.inputResponses, 'drink', DRINK);
        if (drink === undefined) return inputRequired({ inputRequests: { drink: inputRequired.elicit(QUESTION) } });
    }
    return text(`${drink.kind} with ${drink.sugar}`);
}

async function hold({ name }, context) {
    seen.add(`${name} held`);
    const { signal } = request(context);
    const over = new Promise(done => signal.addEventListener('abort', done));
    await report(context, 1, 2, 'holding');
    if (!signal.aborted) await over;
    seen.add(`${name} released`);
    return text('never');
}

async function watch({ name, event, patience }) {
    for (const end = Date.now() + 1000 * patience; Date.now() < end; await pause(LOOK)) {
        if (seen.has(`${name} ${event}`)) return text(`${name} ${event}`);
    }
    return failure(`${name} was not ${event}`);
}

async function count({ to }, context) {
    for (let number = 1; number <= to; number++) {
        await report(context, number, to, `number ${number}`);
        await pause(BEAT);
    }
    return text(`Counted to ${to}.`);
}

const PLAYS = ['Hamlet', 'Hedda Gabler', 'Faust'];
const plays = value => PLAYS.filter(play => play.startsWith(value));

function everything({ era } = { era: 'legacy' }) {
    const server = new McpServer({ name: 'everything', version: '1.0.0' });
    const tool = (name, description, inputSchema, run) => server.registerTool(name, { description, inputSchema: z.object(inputSchema) }, run);
    tool('greet', 'Greet somebody.', { name: z.string() }, async ({ name }) => text(`Hello, ${name}.`));
    const numbers = { a: z.number().int(), b: z.number().int() };
    const sum = { description: 'Add two numbers.', inputSchema: z.object(numbers), outputSchema: z.object({ total: z.number().int() }) };
    server.registerTool('add', sum, async ({ a, b }) => ({ ...text(JSON.stringify({ total: a + b })), structuredContent: { total: a + b } }));
    tool('count', 'Count aloud: a progress notification per number.', { to: z.number().int() }, count);
    tool('refuse', 'Fail in band.', {}, async () => failure('The curtain is stuck.'));
    tool('choose', 'Ask for a drink.', {}, (_, context) => choose(server, era === 'legacy', context));
    tool('hold', 'Report progress once, then wait to be cancelled.', { name: z.string() }, hold);
    const watched = { name: z.string(), event: z.string(), patience: z.number().default(PATIENCE) };
    tool('watch', 'Wait until a `hold` runs, or has been cancelled.', watched, watch);
    const greeting = { uri: 'everything://greeting', mimeType: 'text/plain', text: 'Good evening.' };
    server.registerResource('greeting', greeting.uri, { mimeType: 'text/plain' }, async () => ({ contents: [greeting] }));
    const review = { description: 'A review to write.', argsSchema: z.object({ play: completable(z.string(), plays) }) };
    if (FIRST) review.argsSchema = review.argsSchema.shape;
    server.registerPrompt('review', review, async ({ play }) => ({
        messages: [{ role: 'user', content: { type: 'text', text: `Write a review of ${play}.` } }],
    }));
    return server;
}

// Sessions of 2025, which neither package keeps by itself.
const sessions = new Map();
async function session(Transport, incoming, outgoing, body) {
    let found = sessions.get(incoming.headers['mcp-session-id']);
    if (found === undefined && incoming.headers['mcp-session-id'] !== undefined) {
        outgoing.writeHead(404).end();
        return;
    }
    if (found === undefined) {
        found = new Transport({
            sessionIdGenerator: randomUUID,
            enableJsonResponse: transport === 'http-json',
            onsessioninitialized: id => sessions.set(id, found),
            onsessionclosed: id => sessions.delete(id),
        });
        await everything().connect(found);
    }
    await found.handleRequest(incoming, outgoing, body);
}

function serveOld() {
    const { SSEServerTransport } = require(`${sdk}sse.js`);
    return async (incoming, outgoing) => {
        const url = new URL(incoming.url, 'http://127.0.0.1');
        if (incoming.method === 'POST') {
            const found = sessions.get(url.searchParams.get('sessionId'));
            return found ? found.handlePostMessage(incoming, outgoing) : outgoing.writeHead(404).end();
        }
        const opened = new SSEServerTransport('/messages', outgoing);
        sessions.set(opened.sessionId, opened);
        await everything().connect(opened);
    };
}

function serveFirst() {
    const { StreamableHTTPServerTransport } = require(`${sdk}streamableHttp.js`);
    return (incoming, outgoing) => session(StreamableHTTPServerTransport, incoming, outgoing);
}

function serveBoth() {
    const { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } = require('@modelcontextprotocol/node');
    const modern = toNodeHandler(createMcpHandler(everything, { legacy: 'reject', responseMode: transport === 'http-json' ? 'json' : 'sse' }));
    return async (incoming, outgoing) => {
        const chunks = [];
        for await (const chunk of incoming) chunks.push(chunk);
        const body = chunks.length ? JSON.parse(Buffer.concat(chunks)) : undefined;
        if (incoming.method !== 'POST' || (await isLegacyRequest(await toWebRequest(incoming, body)))) {
            return session(NodeStreamableHTTPServerTransport, incoming, outgoing, body);
        }
        return modern(incoming, outgoing, body);
    };
}

if (transport === 'stdio') {
    if (FIRST) {
        const { StdioServerTransport } = require(`${sdk}stdio.js`);
        await everything().connect(new StdioServerTransport());
    } else {
        require(`${sdk}/stdio`).serveStdio(everything);
    }
} else {
    createServer(transport === 'sse' ? serveOld() : FIRST ? serveFirst() : serveBoth()).listen(Number(port), '127.0.0.1');
}
