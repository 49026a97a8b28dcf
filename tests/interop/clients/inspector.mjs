// Uses everything servers through the commands of MCP Inspector and prints what they saw, one JSON object for each operation over each way.
//
//     FOLDER/node_modules/node/bin/node inspector.mjs FOLDER PEER JOB
//
// FOLDER holds node_modules with the Inspector and a Node.js that is new enough for it; JOB is what player.py takes. `mcp-inspector --cli`
// does one request. Here its entry is called once a request, in this process: starting the command each time would take minutes. What it
// can't do, completing and filling in forms, the Inspector's second command does: `mcpdo`, whose daemon keeps connections.
import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const [folder, PEER, job] = process.argv.slice(2);
const JOB = JSON.parse(job);
const INSPECTOR = resolve(folder, 'node_modules', '@modelcontextprotocol', 'inspector', 'clients');
const COMMANDS = resolve(folder, 'node_modules', '.bin');
const MODERN = '2026-07-28';
const LIMIT = 30_000; // ms for any one command
const print = process.stdout.write.bind(process.stdout);
const texts = result => result.content.map(block => block.text);

const home = mkdtempSync(join(tmpdir(), 'inspector'));
Object.assign(process.env, {
    HOME: home, // where it keeps what it knows: nothing here comes from elsewhere, and nothing is left behind
    MCP_INSPECTOR_DAEMON_DIR: join(home, 'daemon'),
    MCP_INSPECTOR_DAEMON_TOKEN: randomBytes(16).toString('hex'),
    MCP_INSPECTOR_SECRET_STORE: 'file',
});
const { runCli } = await import(pathToFileURL(join(INSPECTOR, 'cli', 'build', 'index.js')).href);

const target = way => (way.url ? [way.url] : way.command);
const era = way => (way.version === MODERN ? 'modern' : 'legacy');
const words = (way, method, ...options) => [...target(way), '--protocol-era', era(way), '--format', 'json', '--quiet', '--method', method, ...options];

// The result that `mcp-inspector --cli` prints.
async function ask(way, method, ...options) {
    let printed = '';
    process.stdout.write = (text, ...rest) => {
        printed += text;
        rest.at(-1)?.();
        return true;
    };
    try {
        await runCli(['node', 'mcp-inspector', ...words(way, method, ...options)]);
    } catch (error) {
        if (printed === '') throw error; // a tool that fails in band is both: a result and an error
    } finally {
        process.stdout.write = print;
    }
    return JSON.parse(printed).result;
}

const call = (way, name, args) => ask(way, 'tools/call', '--tool-name', name, '--tool-args-json', JSON.stringify(args));

// What `mcpdo` prints.
async function keep(way, ...rest) {
    const connection = way.name.replace(' ', '-');
    const command = [join(COMMANDS, 'mcpdo'), '--format', 'json', '--connection', connection, ...rest];
    return new Promise((done, fail) => {
        execFile(process.execPath, command, { timeout: LIMIT }, (_, answer, complaint) => {
            if (answer === '') fail(new Error(complaint));
            else done(JSON.parse(answer));
        });
    });
}

async function inBand(way, tool) {
    const result = await call(way, tool, {});
    return { failed: result.isError, text: texts(result) };
}

const OPERATIONS = {
    async list(way) {
        const { protocolVersion } = await ask(way, 'initialize');
        const { tools } = await ask(way, 'tools/list');
        const { resources } = await ask(way, 'resources/list');
        const { prompts } = await ask(way, 'prompts/list');
        return {
            version: protocolVersion,
            tools: tools.map(tool => tool.name),
            resources: resources.map(resource => resource.uri),
            prompts: prompts.map(prompt => prompt.name),
        };
    },
    async call(way) {
        return { text: texts(await call(way, ...JOB.call)) };
    },
    async structured(way) {
        return { structured: (await call(way, ...JOB.structured)).structuredContent };
    },
    async progress(way) {
        return { text: texts(await call(way, ...JOB.progress)), notes: [] }; // it prints none
    },
    tool_error: way => inBand(way, JOB.tool_error[0]),
    unknown_tool: way => inBand(way, JOB.unknown_tool[0]),
    async resource(way) {
        const { contents } = await ask(way, 'resources/read', '--uri', JOB.resource[0]);
        return { contents: contents.map(item => [item.uri, item.mimeType, item.text]) };
    },
    async prompt(way) {
        const [name, args] = JOB.prompt;
        const pairs = Object.entries(args).map(([key, value]) => `${key}=${value}`);
        const { messages } = await ask(way, 'prompts/get', '--prompt-name', name, '--prompt-args', ...pairs);
        return { messages: messages.map(({ role, content }) => [role, content.text]) };
    },
    // Interrupts a command that waits for its call; both facts are the server's own.
    async cancel(way) {
        if (!way.url) throw new Error('its server ends with it');
        const [hold, watch, held, released] = JOB.cancel;
        const name = `${PEER} ${way.name}`;
        const options = words(way, 'tools/call', '--tool-name', hold, '--tool-args-json', JSON.stringify({ name }));
        const waiting = spawn(process.execPath, [join(COMMANDS, 'mcp-inspector'), '--cli', ...options], { stdio: 'ignore' });
        const ended = new Promise(done => waiting.on('exit', done));
        const running = await call(way, watch, { name, event: held, patience: LIMIT / 1000 }).finally(() => waiting.kill('SIGINT'));
        await ended;
        const stopped = await call(way, watch, { name, event: released, patience: 1 });
        return { running: texts(running), failed: stopped.isError ?? false, stopped: texts(stopped) };
    },
};

const CONNECTED = {
    async completion(way) {
        const [argument, typed] = JOB.completion;
        const about = ['--complete-ref-type', 'ref/prompt', '--complete-ref', JOB.prompt[0]];
        const found = await keep(way, 'prompts/complete', ...about, '--complete-arg-name', argument, '--complete-arg-value', typed);
        return { values: found.values };
    },
    async elicitation(way) {
        const [tool, content] = JOB.elicitation;
        const result = await keep(way, 'tools/call', tool);
        const pending = result.elicitationPending;
        if (!pending) return { failed: result.isError ?? false, asked: [], text: texts(result) };
        const fields = Object.entries(content).map(([key, value]) => `${key}:=${value}`);
        const last = await keep(way, 'elicitation/respond', pending.elicitationId, ...fields);
        return { failed: last.isError ?? false, asked: [pending.message], text: texts(last) };
    },
};

async function attempt(way, operations) {
    for (const [operation, work] of Object.entries(operations)) {
        const saw = await work(way).catch(error => ({ error: String(error), code: error.envelope?.code ?? error.code ?? null }));
        print(`${JSON.stringify({ way: way.name, operation, saw })}\n`);
    }
}

async function requests() {
    for (const way of JOB.ways) await attempt(way, OPERATIONS);
}

async function connections() {
    for (const way of JOB.ways) {
        await keep(way, 'connect', '--era', era(way), '--', ...target(way));
        await attempt(way, CONNECTED);
    }
}

// The daemon would outlive us.
async function leave() {
    await new Promise(done => execFile(process.execPath, [join(COMMANDS, 'mcpdo'), 'daemon', 'stop'], { timeout: LIMIT }, done));
    rmSync(home, { recursive: true, force: true });
}

process.on('SIGTERM', () => leave().finally(() => process.exit(143)));
try {
    await Promise.all([requests(), connections()]);
} finally {
    await leave();
}
process.exit(0); // whatever the command leaves open
