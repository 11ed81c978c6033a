"""Scrapy as its documentation tunes it for broad crawls: `scrapy_peer.py URLS OUT CONCURRENCY`.

What costs and is not needed here (cookies, robots, telnet, log, statistics of depth and referer) is off; the feed exporter
writes the lines. No JOBDIR: keeping the queue on disk, as forbear does, would make it slower.
"""

import sys

import scrapy
from scrapy.crawler import CrawlerProcess


class Pages(scrapy.Spider):
    name = "pages"

    async def start(self):
        with open(sys.argv[1]) as source:
            for number, line in enumerate(source, 1):
                yield scrapy.Request(line.strip(), dont_filter=True, cb_kwargs={"number": number})

    def parse(self, response, number):
        yield {
            "id": str(number),
            "url": response.url,
            "status": response.status,
            "bytes": len(response.body),
            "body": response.text,
        }


process = CrawlerProcess(
    settings={
        "CONCURRENT_REQUESTS": int(sys.argv[3]),
        "CONCURRENT_REQUESTS_PER_DOMAIN": int(sys.argv[3]),
        "DOWNLOAD_DELAY": 0,
        "AUTOTHROTTLE_ENABLED": False,
        "ROBOTSTXT_OBEY": False,
        "COOKIES_ENABLED": False,
        "TELNETCONSOLE_ENABLED": False,
        "LOG_LEVEL": "ERROR",
        "SPIDER_MIDDLEWARES": {
            "scrapy.spidermiddlewares.depth.DepthMiddleware": None,
            "scrapy.spidermiddlewares.referer.RefererMiddleware": None,
        },
        "FEEDS": {sys.argv[2]: {"format": "jsonlines", "overwrite": True}},
    }
)
process.crawl(Pages)
process.start()
