"""The home-made asyncio crawler: `aiohttp_peer.py URLS OUT CONCURRENCY`.

One session, as many workers as connections, a line of JSON for each page. No job, no resume, no limits.
"""

import asyncio
import json
import sys

import aiohttp


async def worker(session, lines, out):
    for number, url in lines:
        async with session.get(url) as response:
            body = await response.text()
            record = {"id": str(number), "url": url, "status": response.status, "bytes": len(body), "body": body}
            out.write(json.dumps(record) + "\n")


async def main(urls, out, concurrency):
    with open(urls) as source, open(out, "w") as sink:
        lines = enumerate((line.strip() for line in source), 1)
        connector = aiohttp.TCPConnector(limit=concurrency)
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
            await asyncio.gather(*(worker(session, lines, sink) for _ in range(concurrency)))


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
