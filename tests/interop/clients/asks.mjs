// Answers what the server of asks_program.py asks, through an official npm client, and prints what came of it, one JSON object a line.
//
//     node asks.mjs FOLDER URL COMMAND ...
//
// Over HTTP and over stdio; `@modelcontextprotocol/client` in both its modes. FOLDER holds the node_modules with either that package or
// `@modelcontextprotocol/sdk`, the client of 2025. asks.py does the same with the official Python clients.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';

const [folder, url, command, ...args] = process.argv.slice(2);
const require = createRequire(join(resolve(folder), 'any.js'));
const FIRST = existsSync(join(resolve(folder), 'node_modules', '@modelcontextprotocol', 'sdk'));
const sdk = FIRST ? '@modelcontextprotocol/sdk/client/' : '@modelcontextprotocol/client';
const { Client } = require(FIRST ? `${sdk}index.js` : sdk);
const { StreamableHTTPClientTransport } = require(FIRST ? `${sdk}streamableHttp.js` : sdk);
const { StdioClientTransport } = require(FIRST ? `${sdk}stdio.js` : `${sdk}/stdio`);

const PATIENCE = 30_000; // ms for all calls over one connection
const say = (step, facts = {}) => console.log(JSON.stringify({ step, ...facts }));
const text = result => result.content[0].text;

function answering(client, asked) {
    const fillIn = ({ params }) => {
        asked.push(params.message);
        return { action: 'accept', content: 'kind' in params.requestedSchema.properties ? { kind: 'tea', sugar: 2 } : { value: true } };
    };
    const speak = ({ params }) => {
        asked.push([params.messages[0].content].flat()[0].text);
        return { role: 'assistant', model: 'poet', content: { type: 'text', text: 'sun' } };
    };
    if (FIRST) {
        const types = require('@modelcontextprotocol/sdk/types.js');
        client.setRequestHandler(types.ElicitRequestSchema, fillIn);
        client.setRequestHandler(types.CreateMessageRequestSchema, speak);
    } else {
        client.setRequestHandler('elicitation/create', fillIn);
        client.setRequestHandler('sampling/createMessage', speak);
    }
}

// Calls a tool as a task of 2025-11-25; only the first generation can.
async function later(client) {
    for await (const message of client.experimental.tasks.callToolStream({ name: 'choose_later', arguments: {} }, undefined, { task: {} })) {
        if (message.type === 'result') return text(message.result);
        if (message.type === 'error') throw message.error;
    }
}

async function use(kind, mode) {
    const options = { capabilities: { elicitation: { form: {} }, sampling: {} } };
    if (!FIRST) options.versionNegotiation = { mode: mode === 'modern' ? { pin: '2026-07-28' } : 'legacy' };
    const client = new Client({ name: 'callboard-e2e', version: '1.0.0' }, options);
    const asked = [];
    answering(client, asked);
    await client.connect(kind === 'stdio' ? new StdioClientTransport({ command, args }) : new StreamableHTTPClientTransport(new URL(url)));
    const call = async (name, given = {}) => text(await client.callTool({ name, arguments: given }));
    const seen = {
        choose: await call('choose'),
        rhyme: await call('rhyme', { word: 'fun' }),
        order: await call('order', { buyer: `npm ${FIRST} ${kind} ${mode}` }),
        later: FIRST ? await later(client) : null,
    };
    say(`${kind} ${mode}`, { ...seen, asked });
    await client.close();
}

for (const mode of FIRST ? ['legacy'] : ['legacy', 'modern']) {
    for (const kind of ['http', 'stdio']) {
        let timer;
        const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(`${kind} ${mode} took too long`)), PATIENCE)));
        await Promise.race([use(kind, mode), late]).finally(() => clearTimeout(timer));
    }
}
say('end');
