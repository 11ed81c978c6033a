// Small pages behind express-rate-limit, set up as its own documentation does it. One JSON argument:
//   headers   "draft-6", "draft-7", "draft-8", "legacy" or "none"
//   limit     requests per window
//   windowMs  the window in milliseconds
// Prints `listening PORT` once, then `STATUS PATH` for every answer: what this server itself counted.
"use strict";

const express = require("express");
const { rateLimit } = require("express-rate-limit");

const { headers, limit, windowMs } = JSON.parse(process.argv[2]);
const app = express();

app.use((request, response, next) => {
  response.on("finish", () => process.stdout.write(`${response.statusCode} ${request.originalUrl}\n`));
  next();
});
app.use(
  rateLimit({
    limit,
    windowMs,
    standardHeaders: headers.startsWith("draft-") ? headers : false,
    legacyHeaders: headers === "legacy",
  }),
);
app.get("/p/:page", (request, response) => response.send(`page ${request.params.page}\n`));

const server = app.listen(0, "127.0.0.1", () => process.stdout.write(`listening ${server.address().port}\n`));
// The parent holds the other end of stdin: when it dies, however it dies, this server goes with it.
process.stdin.resume().on("end", () => process.exit(0));
