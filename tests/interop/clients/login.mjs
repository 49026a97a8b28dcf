// Logs in with an official npm client, steps up, renews, and prints what it saw, one JSON object a line.
//
//     node login.mjs FOLDER URL MODE WHO
//
// MODE is `legacy` or `modern`. WHO is `register`, or the URL of a metadata document to be known by. FOLDER holds the node_modules with
// `@modelcontextprotocol/client`, or with `@modelcontextprotocol/sdk`, the client of 2025. The server is that of login_stage.py; login.py
// does the same with the official Python clients.
import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';

const [folder, url, mode, who] = process.argv.slice(2);
const require = createRequire(join(resolve(folder), 'any.js'));
const FIRST = existsSync(join(resolve(folder), 'node_modules', '@modelcontextprotocol', 'sdk'));
const sdk = FIRST ? '@modelcontextprotocol/sdk/client/' : '@modelcontextprotocol/client';
const { Client } = require(FIRST ? `${sdk}index.js` : sdk);
const { StreamableHTTPClientTransport } = require(FIRST ? `${sdk}streamableHttp.js` : sdk);
const { UnauthorizedError } = require(FIRST ? `${sdk}auth.js` : sdk);

const REDIRECT = 'http://127.0.0.1:8123/callback';
const say = (step, facts = {}) => console.log(JSON.stringify({ step, ...facts }));

// What the client knows of its logins, and in place of a browser whoever agrees at once.
class Person {
    pages = [];
    redirectUrl = REDIRECT;
    clientMetadataUrl = who === 'register' ? undefined : who;
    clientMetadata = {
        client_name: 'callboard-login',
        redirect_uris: [REDIRECT],
        grant_types: ['authorization_code', 'refresh_token'],
        response_types: ['code'],
        token_endpoint_auth_method: 'none',
    };
    state = () => (this.sent = randomUUID());
    clientInformation = () => this.client;
    saveClientInformation = client => void (this.client = client);
    tokens = () => this.kept;
    saveTokens = tokens => void (this.kept = tokens);
    codeVerifier = () => this.verifier;
    saveCodeVerifier = verifier => void (this.verifier = verifier);
    discoveryState = () => this.found;
    saveDiscoveryState = found => void (this.found = found);

    async redirectToAuthorization(page) {
        this.pages.push(page.searchParams.get('scope'));
        const response = await fetch(page, { redirect: 'manual' });
        this.back = new URL(response.headers.get('location')).searchParams;
        if (this.back.get('state') !== this.sent) throw new Error('another state');
    }
}

const person = new Person();
let client, transport;

// Attempts something; after a login once more.
async function attempt(what) {
    try {
        return await what();
    } catch (error) {
        if (FIRST && error.code === 403 && person.kept.refresh_token) {
            // It only renews the token, which brings no other scopes: without a refresh token it asks for them. A challenge that it has
            // seen it takes up again only after an answer that is none.
            delete person.kept.refresh_token;
            await client.ping();
            return await attempt(what);
        }
        if (!(error instanceof UnauthorizedError)) throw error;
        await transport.finishAuth(FIRST ? person.back.get('code') : person.back);
        return await what();
    }
}

async function connect() {
    const options = FIRST ? {} : { versionNegotiation: { mode: mode === 'modern' ? { pin: '2026-07-28' } : 'legacy' } };
    client = new Client({ name: 'callboard-login', version: '1.0.0' }, options);
    transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: person });
    await client.connect(transport);
}

async function call(name, args = {}) {
    const result = await attempt(() => client.callTool({ name, arguments: args }));
    return JSON.parse(result.content.find(block => block.type === 'text').text);
}

await attempt(connect);
say('login', { seen: await call('whoami'), pages: [...person.pages] });
say('step-up', { written: await call('write', { text: 'bread' }), seen: await call('whoami'), pages: [...person.pages] });
await call('age');
say('renewed', { seen: await call('whoami') });
await call('rotate');
say('last key', { seen: await call('whoami') });
await call('age');
say('new key', { seen: await call('whoami'), written: await call('write', { text: 'milk' }), pages: [...person.pages] });
await client.close();
say('end');
