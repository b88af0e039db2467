#!/usr/bin/env python3
"""A client of the agreement without fairweir: has a divider divide its downloads by weight.

usage: agreement_client.py DIVIDER SOURCE SECONDS WEIGHT=HOST:PORT...
prints what each download received, in bytes, or why the divider does not divide.

DIVIDER is the address of the router or of the ISP's policer, SOURCE the own one. The messages are those of
docs/reference/agreement.md. Each download is a class of its own. All its packets have the mark here; the first
of a flow and one in each second are enough.
"""
import os
import socket
import struct
import sys
import threading
import time

PORT = 7425
HELLO, COOKIE, ASK, AGREED, END = range(1, 6)
OUTCOMES = ["divides", "not offered", "taken", "too soon", "full", "not now"]


def message(kind, nonce, body):
    return struct.pack("!4sBBHQ", b"FWAG", 1, kind, 16 + len(body), nonce) + body


class Client:
    def __init__(self, divider, source, weights):
        self.socket = socket.socket(socket.AF_INET6 if ":" in divider else socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((source, 0))
        self.socket.connect((divider, PORT))
        self.socket.settimeout(0.5)
        self.nonce = int.from_bytes(os.urandom(8), "big")
        self.cookie, self.epoch, self.weights = None, 0, weights

    def exchange(self, kind, body):
        """The kind and body of the answer; none within half a second."""
        self.socket.send(message(kind, self.nonce, body))
        try:
            answer = self.socket.recv(256)
        except (TimeoutError, socket.timeout, ConnectionRefusedError):
            return None, b""
        magic, version, kind, length, nonce = struct.unpack_from("!4sBBHQ", answer)
        if (magic, version, length, nonce) != (b"FWAG", 1, len(answer), self.nonce):
            return None, b""
        return kind, answer[16:]

    def ask(self):
        """Asks or renews. The marks of the classes, or why there are none."""
        for _ in range(3):
            if self.cookie is None:
                kind, body = self.exchange(HELLO, bytes(16))
            else:
                weights = self.weights + [0] * (16 - len(self.weights))
                body = struct.pack("!16sIBBH16H12x", self.cookie, self.epoch, len(self.weights), 0, 0, *weights)
                kind, body = self.exchange(ASK, body)
            if kind == COOKIE:
                self.cookie = body
            elif kind == AGREED:
                self.epoch, _lease_ms, outcome, count = struct.unpack_from("!IHBB", body)
                return list(body[24 : 24 + count]) if self.epoch else OUTCOMES[outcome]
        return "no answer"

    def end(self):
        self.socket.send(message(END, self.nonce, struct.pack("!16sI", self.cookie, self.epoch)))


def download(source, server, dscp, received, at):
    family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    level, option = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if ":" in server[0] else (socket.IPPROTO_IP, socket.IP_TOS)
    stream = socket.socket(family, socket.SOCK_STREAM)
    stream.setsockopt(level, option, dscp << 2)
    stream.bind((source, 0))
    stream.connect(server)
    while data := stream.recv(1 << 16):
        received[at] += len(data)


def main(divider, source, seconds, *classes):
    split = [text.split("=") for text in classes]
    servers = [(name.rsplit(":", 1)[0].strip("[]"), int(name.rsplit(":", 1)[1])) for _, name in split]
    client = Client(divider, source, [int(weight) for weight, _ in split])
    marks = client.ask()
    if isinstance(marks, str):
        sys.exit(f"{divider} does not divide: {marks}")
    received = [0] * len(servers)
    for at, server in enumerate(servers):
        threading.Thread(target=download, args=(source, server, marks[at], received, at), daemon=True).start()
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        time.sleep(1)
        # A lease holds for 3 s.
        renewed = client.ask()
        if isinstance(renewed, str):
            sys.exit(f"{divider} does not divide any more: {renewed}")
    client.end()
    print(*received)


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
