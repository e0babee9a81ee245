// node-redlock 5, on one server.
"use strict";

const Redis = require("ioredis");
const { default: Redlock } = require("redlock5");
const { url, name, run } = require("./section.js");

// The package does not export its manifest.
const { version } = require("./package-lock.json").packages["node_modules/redlock5"];
const client = new Redis(url);
const redlock = new Redlock([client], { retryCount: 20000, retryDelay: 2, retryJitter: 2 });

client
  .ping()
  .then(() =>
    run(version, async (count) => {
      const lock = await redlock.acquire([name], 30000);
      const turn = await count();
      await lock.release();
      return turn;
    }),
  )
  .then(() => client.quit())
  .catch((error) => {
    console.error(error);
    process.exit(1);
  });
