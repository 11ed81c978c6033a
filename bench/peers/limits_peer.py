"""The moving window of `limits` on Redis: `limits_peer.py URL SECONDS`. Prints how many requests it let through.

Each request is one hit, 32 at a time; the limit is so high that none is refused.
"""

import asyncio
import sys
import time

from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter

done = 0


async def task(limiter, item, end):
    global done
    while time.monotonic() < end:
        if await limiter.hit(item, "bench"):
            done += 1


async def main():
    url, seconds = sys.argv[1], float(sys.argv[2])
    limiter = MovingWindowRateLimiter(RedisStorage(f"async+{url}"))
    item = RateLimitItemPerSecond(100_000)
    await limiter.hit(item, "bench")
    end = time.monotonic() + seconds
    await asyncio.gather(*(task(limiter, item, end) for _ in range(32)))
    print(f"{done} 0 0")


asyncio.run(main())
