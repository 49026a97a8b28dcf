// Loaded before the suite: its mock servers listen without naming a host, which opens them to the network. Here they get the loopback's.
// `_listen2` is what listen() ends in at once; the suite reads the port right after listen(), so nothing may happen later.
import { Server } from 'node:net';

const listen = Server.prototype._listen2;

Server.prototype._listen2 = function onLoopback(address, port, family, ...more) {
  const anywhere = address === null && Number.isInteger(port) && port >= 0;
  return anywhere ? listen.call(this, '127.0.0.1', port, 4, ...more) : listen.call(this, address, port, family, ...more);
};
