// Uses everything servers through one of the official npm clients and prints what it saw, one JSON object for each operation over each way.
//
//     node player.mjs FOLDER PEER JOB
//
// FOLDER holds node_modules with `@modelcontextprotocol/client`, or with `@modelcontextprotocol/sdk`, the client of 2025. PEER names it in what
// the server sees; JOB is what player.py takes, which does the same with the Python clients.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';
import { performance } from 'node:perf_hooks';

const [folder, PEER, job] = process.argv.slice(2);
const JOB = JSON.parse(job);
const require = createRequire(join(resolve(folder), 'any.js'));
const FIRST = existsSync(join(resolve(folder), 'node_modules', '@modelcontextprotocol', 'sdk'));
const sdk = FIRST ? '@modelcontextprotocol/sdk/client/' : '@modelcontextprotocol/client';
const { Client } = require(FIRST ? `${sdk}index.js` : sdk);
const { StreamableHTTPClientTransport } = require(FIRST ? `${sdk}streamableHttp.js` : sdk);
const { StdioClientTransport } = require(FIRST ? `${sdk}stdio.js` : `${sdk}/stdio`);

const MODERN = '2026-07-28';
const LIMIT = 20_000; // ms for any one operation
// Calls that are made until one shows every note: both clients drop notes that arrive in one piece with the result, as they do when this
// process is late to read.
const PATIENCE = 10;
const texts = result => result.content.map(block => block.text);

// A connection to a server.
class Seat {
    asked = [];

    constructor(way) {
        const options = { capabilities: { elicitation: { form: {} } } };
        if (!FIRST) options.versionNegotiation = { mode: way.version === MODERN ? 'auto' : 'legacy' };
        this.way = way;
        this.client = new Client({ name: 'callboard-interop', version: '1.0.0' }, options);
        const fillIn = ({ params }) => {
            this.asked.push(params.message);
            return { action: 'accept', content: JOB.elicitation[1] };
        };
        this.client.setRequestHandler(FIRST ? require('@modelcontextprotocol/sdk/types.js').ElicitRequestSchema : 'elicitation/create', fillIn);
        this.transport = way.url
            ? new StreamableHTTPClientTransport(new URL(way.url))
            : new StdioClientTransport({ command: way.command[0], args: way.command.slice(1), stderr: 'ignore' });
        if (FIRST) this.watchVersion();
    }

    // The first generation shows the version over HTTP alone.
    watchVersion() {
        const set = this.transport.setProtocolVersion?.bind(this.transport);
        this.transport.setProtocolVersion = version => {
            this.version = version;
            set?.(version);
        };
    }

    async connect() {
        await this.client.connect(this.transport);
        this.version ??= this.client.getNegotiatedProtocolVersion();
    }

    call([name, args], options) {
        return FIRST ? this.client.callTool({ name, arguments: args }, undefined, options) : this.client.callTool({ name, arguments: args }, options);
    }
}

const inBand = async (at, tool) => {
    const result = await at.call([tool, {}]);
    return { failed: result.isError, text: texts(result) };
};

const OPERATIONS = {
    async list(at) {
        const { tools } = await at.client.listTools();
        const { resources } = await at.client.listResources();
        const { prompts } = await at.client.listPrompts();
        return {
            version: at.version,
            tools: tools.map(tool => tool.name),
            resources: resources.map(resource => resource.uri),
            prompts: prompts.map(prompt => prompt.name),
        };
    },
    async call(at) {
        return { text: texts(await at.call(JOB.call)) };
    },
    async structured(at) {
        return { structured: (await at.call(JOB.structured)).structuredContent };
    },
    async progress(at) {
        let seen;
        let calls = 0;
        do {
            const notes = [];
            const onprogress = ({ progress, total, message }) => notes.push([progress, total, message]);
            seen = { text: texts(await at.call(JOB.progress, { onprogress })), notes };
        } while (!at.way.quiet && seen.notes.length < JOB.progress[2].length && ++calls < PATIENCE);
        return seen;
    },
    tool_error: at => inBand(at, JOB.tool_error[0]),
    unknown_tool: at => inBand(at, JOB.unknown_tool[0]),
    async resource(at) {
        const { contents } = await at.client.readResource({ uri: JOB.resource[0] });
        return { contents: contents.map(item => [item.uri, item.mimeType, item.text]) };
    },
    async prompt(at) {
        const { messages } = await at.client.getPrompt({ name: JOB.prompt[0], arguments: JOB.prompt[1] });
        return { messages: messages.map(({ role, content }) => [role, content.text]) };
    },
    async completion(at) {
        const [name, value] = JOB.completion;
        const asked = { ref: { type: 'ref/prompt', name: JOB.prompt[0] }, argument: { name, value } };
        return { values: (await at.client.complete(asked)).completion.values };
    },
    async elicitation(at) {
        const result = await at.call([JOB.elicitation[0], {}]);
        return { failed: result.isError ?? false, asked: at.asked, text: texts(result) };
    },
    // Gives up a call that runs; both facts are the server's own.
    async cancel(at) {
        const [hold, watch, held, released] = JOB.cancel;
        const name = `${PEER} ${at.way.name}`;
        const aborter = new AbortController();
        const call = at.call([hold, { name }], { signal: aborter.signal }).catch(error => error);
        const running = texts(await at.call([watch, { name, event: held }]));
        const givenUp = performance.now();
        aborter.abort();
        await call;
        const stopped = await at.call([watch, { name, event: released }]);
        return { running, failed: stopped.isError ?? false, stopped: texts(stopped), seconds: (performance.now() - givenUp) / 1000 };
    },
};

const failure = error => ({ error: String(error), code: error.code ?? null });

async function within(work) {
    let timer;
    const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(`took over ${LIMIT} ms`)), LIMIT)));
    return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

async function play(way) {
    const say = (operation, saw) => console.log(JSON.stringify({ way: way.name, operation, saw }));
    const at = new Seat(way);
    try {
        await within(at.connect());
        for (const [name, operation] of Object.entries(OPERATIONS)) say(name, await within(operation(at)).catch(failure));
        await at.transport.terminateSession?.();
    } catch (error) {
        say('connection', failure(error));
    } finally {
        await at.client.close();
    }
}

await Promise.all(JOB.ways.map(play));
