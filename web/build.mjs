// Bundle the pages: the explorer into the documentation, the interactive parts of reports into the library.
import { build } from "esbuild";

const shared = { bundle: true, minify: true, format: "iife", target: "es2021", charset: "utf8", logLevel: "info" };

await build({ ...shared, entryPoints: { explorer: "src/explorer.ts", pages: "src/pages.css" }, outdir: "../docs/explorer" });
await build({ ...shared, entryPoints: { pages: "src/reports.ts" }, outfile: "../src/hrf/assets/pages.js" });
await build({ ...shared, entryPoints: ["src/pages.css"], outfile: "../src/hrf/assets/pages.css" });
