#!/usr/bin/env node
// A function in JavaScript for the benchmarks, without packages: gives items that have a namespace the one of its config.
// It goes by lines and knows the block style of bench/inputs.py alone.
"use strict";

const fs = require("fs");

const NAMESPACE_OF_CONFIG = /^functionConfig:\n(?: .*\n)*? {2}data:\n {4}namespace: (.+)$/m;
const NAMESPACE_OF_ITEM = /^( {2}metadata:\n(?: {4}.*\n)*? {4}namespace: ).+$/gm;

const input = fs.readFileSync(0, "utf8");
const config = NAMESPACE_OF_CONFIG.exec(input);
if (config === null) {
  process.stderr.write("the function config names no namespace\n");
  process.exitCode = 1;
} else {
  fs.writeFileSync(1, input.replace(NAMESPACE_OF_ITEM, (_, before) => before + config[1]));
}
