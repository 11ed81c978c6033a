// Bottleneck, clustered over Redis: `bottleneck_peer.js URL SECONDS`. Prints how many jobs were done.
//
// Each job is asked for, started and ended, 32 at a time, which is what a permit and a report are. Nothing but the number of jobs
// at once is limited, and it is never reached.
const Bottleneck = require("bottleneck");

const [url, seconds] = process.argv.slice(2);
const { hostname, port } = new URL(url);
const limiter = new Bottleneck({
  id: "bench",
  datastore: "ioredis",
  clearDatastore: false,
  clientOptions: { host: hostname, port: Number(port) },
  maxConcurrent: 256,
});
let done = 0;

async function task(end) {
  while (Date.now() < end) {
    await limiter.schedule(async () => {});
    done += 1;
  }
}

(async () => {
  await limiter.ready();
  const end = Date.now() + Number(seconds) * 1000;
  await Promise.all(Array.from({ length: 32 }, () => task(end)));
  console.log(`${done} 0 0`);
  process.exit(0);
})();
