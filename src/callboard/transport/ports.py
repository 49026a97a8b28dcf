"""Ports that can't serve: those a browser refuses to call, and those that are taken."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from typing import Final

__all__ = ["BAD_PORTS", "refuse_port"]

BAD_PORTS: Final[Mapping[int, str]] = {
    1: "tcpmux", 7: "echo", 9: "discard", 11: "systat", 13: "daytime", 15: "netstat", 17: "qotd", 19: "chargen", 20: "ftp-data",
    21: "ftp", 22: "ssh", 23: "telnet", 25: "smtp", 37: "time", 42: "name", 43: "nicname", 53: "domain", 69: "tftp", 77: "rje",
    79: "finger", 87: "link", 95: "supdup", 101: "hostname", 102: "iso-tsap", 103: "gppitnp", 104: "acr-nema", 109: "pop2", 110: "pop3",
    111: "sunrpc", 113: "auth", 115: "sftp", 117: "uucp-path", 119: "nntp", 123: "ntp", 135: "epmap", 137: "netbios-ns",
    139: "netbios-ssn", 143: "imap", 161: "snmp", 179: "bgp", 389: "ldap", 427: "svrloc", 465: "submissions", 512: "exec",
    513: "login", 514: "shell", 515: "printer", 526: "tempo", 530: "courier", 531: "chat", 532: "netnews", 540: "uucp", 548: "afp",
    554: "rtsp", 556: "remotefs", 563: "nntps", 587: "submission", 601: "syslog-conn", 636: "ldaps", 989: "ftps-data", 990: "ftps",
    993: "imaps", 995: "pop3s", 1719: "h323gatestat", 1720: "h323hostcall", 1723: "pptp", 2049: "nfs", 3659: "apple-sasl", 4045: "npp",
    4190: "sieve", 5060: "sip", 5061: "sips", 6000: "x11", 6566: "sane-port", 6665: "ircu", 6666: "ircu", 6667: "ircu", 6668: "ircu",
    6669: "ircu", 6679: "osaut", 6697: "ircs-u", 10080: "amanda",
}  # fmt: skip
"""The bad ports of the WHATWG Fetch standard and the service each belongs to: browsers, Node's `fetch` and what builds on them refuse them
before anything is sent. Port 0, which the standard lists too, means any free port to a server."""


def refuse_port(host: str, port: int) -> str | None:
    """Say why a server can't serve on a port, before it tries to.

    Args:
        host: Address or name of this machine.
        port: 0 to 65535; 0 stands for any free one.

    Returns:
        One sentence with the way out; None when the port will do.
    """
    if service := BAD_PORTS.get(port):
        return f"port {port} belongs to {service}, so browsers and fetch refuse to call it (the WHATWG bad-port list); choose another one"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As servers do: a port in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return _complaint(host, port, error)
    return None


def _complaint(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: stop what serves there, or choose another one"
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights than this user has: choose one from 1024 up"
    return f"{host} is no address of this machine that can be served on ({error.strerror})"
