// Builds the console into the crate that serves it, and the library of extensions' pages into the one that bundles them. What
// is built is committed; with `--check`, nothing is written, and a difference is a failure.
import { build } from "esbuild";
import { readFile, writeFile, mkdir, readdir, rm } from "node:fs/promises";
import { basename, join, dirname } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "../crates/console/assets");
const library = join(here, "../crates/forge/assets");
const check = process.argv.includes("--check");

const common = {
  absWorkingDir: here,
  // Modules may be a link into a cache; what is built must not say where that is.
  preserveSymlinks: true,
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  jsx: "automatic",
  jsxImportSource: "preact",
  write: false,
  logLevel: "warning",
};
const outputs = async (options) => {
  const { outputFiles } = await build({ ...common, ...options });
  return outputFiles.map((file) => [basename(file.path), Buffer.from(file.contents)]);
};
const scripts = { app: "src/main.tsx", frame: "src/frame.ts", terminal: "src/terminal.ts", yaml: "src/yaml.ts" };
const files = new Map([
  ...await outputs({ entryPoints: scripts, outdir: target, minify: true, external: ["/assets/*"] }),
  ...await outputs({ entryPoints: { app: "src/style.css", terminal: "src/terminal.css" }, outdir: target, minify: true }),
]);
for (const name of await readdir(join(here, "static"))) {
  files.set(name, await readFile(join(here, "static", name)));
}
// Read by people, and bundled again for each integration; the terms of what is in it go along.
const preact = (await readFile(join(here, "node_modules/preact/LICENSE"), "utf8")).trim();
const banner = { js: `// Built by console/build.mjs from console/extension. Do not edit.\n/*! Preact\n\n${preact}\n*/` };
const pages = new Map(await outputs({ entryPoints: { page: "extension/index.tsx" }, outdir: library, banner }));

// What is in the scripts besides our own, and under which terms.
const { dependencies } = JSON.parse(await readFile(join(here, "package.json"), "utf8"));
const terms = await Promise.all(Object.entries(dependencies).map(async ([name, version]) => {
  const text = await readFile(join(here, "node_modules", name, "LICENSE"), "utf8");
  return `${name} ${version}\n\n${text.trim()}\n`;
}));
files.set("licenses.txt", Buffer.from(terms.join("\n----\n\n")));

/** Writes what differs, or says so; how much that was. Where everything is ours, the rest goes. */
async function put(directory, shown, made, ours) {
  await mkdir(directory, { recursive: true });
  const there = new Set(await readdir(directory));
  let differences = 0;
  for (const [name, content] of made) {
    const path = join(directory, name);
    const old = there.has(name) ? await readFile(path) : null;
    there.delete(name);
    if (old && old.equals(content)) continue;
    differences += 1;
    if (check) console.error(`    ${shown}/${name} is not what console/ builds`);
    else await writeFile(path, content);
  }
  for (const name of ours ? there : []) {
    differences += 1;
    if (check) console.error(`    ${shown}/${name} is not built from anything`);
    else await rm(join(directory, name));
  }
  if (!check) for (const [name, content] of made) console.log(`${name.padEnd(12)} ${content.length} bytes`);
  return differences;
}
const differences = (await put(target, "crates/console/assets", files, true)) + (await put(library, "crates/forge/assets", pages, false));
if (check && differences > 0) process.exit(1);
