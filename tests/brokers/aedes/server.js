// Runs Aedes on a port of 127.0.0.1 (the first argument) until it is killed; prints its version once it listens.
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { Aedes } from "aedes";

const broker = await Aedes.createBroker();
const { version } = JSON.parse(readFileSync(new URL("node_modules/aedes/package.json", import.meta.url)));
createServer(broker.handle).listen(Number(process.argv[2]), "127.0.0.1", () => console.log(version));
