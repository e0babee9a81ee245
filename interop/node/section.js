// A critical section around a plain file: 19 digits and the letter of the side that wrote last.
"use strict";

const fs = require("node:fs");
const readline = require("node:readline");

const [url, name, path, sections] = process.argv.slice(2);
const file = fs.openSync(path, "r+");

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Reads the number, pauses, writes it plus one; returns 1 if the other side wrote last.
async function count() {
  const seen = Buffer.alloc(20);
  fs.readSync(file, seen, 0, 20, 0);
  await pause(1);
  const next = Number(seen.toString("ascii", 0, 19)) + 1;
  fs.writeSync(file, String(next).padStart(19, "0") + "t", 0);
  return seen.toString("ascii", 19) === "o" ? 1 : 0;
}

// Reports that it is ready, waits for the start signal, and runs all sections; `locked` runs one under the lock.
async function run(version, locked) {
  console.log("ready", version);
  const input = readline.createInterface({ input: process.stdin });
  await new Promise((resolve) => input.once("line", resolve));
  input.close();
  let turns = 0;
  for (let i = 0; i < Number(sections); i += 1) {
    turns += await locked(count);
    await pause(Math.random() * 4); // lets the others in
  }
  console.log("done", sections, turns);
}

module.exports = { url, name, run };
