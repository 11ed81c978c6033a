#!/usr/bin/env python3
"""A small server with a limit, to try `forbear fetch` against: loopback only, nothing to install.

    python3 examples/limited-server.py [PORT [RATE [BURST]]]

It serves any path, RATE requests a second (10) and BURST at once (20), and refuses the rest with 429 and a
`Retry-After` in whole seconds. `/search` has a limit of its own: one a second. Ctrl-C ends it, and it says
what it saw.
"""

import math
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Bucket:
    """A token bucket: `rate` tokens a second flow in, `burst` fit."""

    def __init__(self, rate, burst):
        self.rate, self.burst, self.tokens, self.at = rate, burst, burst, time.monotonic()
        self.lock = threading.Lock()

    def wait(self):
        """Takes a token, or says how many seconds the next one is away."""
        with self.lock:
            now = time.monotonic()
            self.tokens = min(self.burst, self.tokens + (now - self.at) * self.rate)
            self.at = now
            if self.tokens < 1:
                return (1 - self.tokens) / self.rate
            self.tokens -= 1
            return 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        bucket = SEARCH if self.path.startswith("/search") else PAGES
        wait = bucket.wait()
        SEEN[429 if wait else 200] += 1
        body = b"too many requests\n" if wait else f"this is {self.path.split('?')[0]}\n".encode()
        self.send_response(429 if wait else 200)
        if wait:
            self.send_header("Retry-After", str(math.ceil(wait)))
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


PORT, RATE, BURST = (list(map(int, sys.argv[1:])) + [8080, 10, 20][len(sys.argv) - 1 :])[:3]
PAGES, SEARCH = Bucket(RATE, BURST), Bucket(1, 1)
SEEN = {200: 0, 429: 0}

if __name__ == "__main__":
    ThreadingHTTPServer.daemon_threads = True
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    print(f"http://127.0.0.1:{server.server_port}/ serves {RATE} requests a second, {BURST} at once", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(f"\nserved {SEEN[200]}, refused {SEEN[429]}")
