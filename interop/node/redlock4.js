// node-redlock 4, on one server.
"use strict";

const Redis = require("ioredis");
const Redlock = require("redlock4");
const { version } = require("redlock4/package.json");
const { url, name, run } = require("./section.js");

const client = new Redis(url);
const redlock = new Redlock([client], { retryCount: 20000, retryDelay: 2, retryJitter: 2 });

client
  .ping()
  .then(() =>
    run(version, async (count) => {
      const lock = await redlock.lock(name, 30000);
      const turn = await count();
      await lock.unlock();
      return turn;
    }),
  )
  .then(() => client.quit())
  .catch((error) => {
    console.error(error);
    process.exit(1);
  });
