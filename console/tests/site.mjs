// A web site of somebody else, for as long as a trial needs it.

import { createServer } from "node:http";

const PAGE = "<title>Site</title><h1>A site of its own</h1><script>localStorage.setItem('kept', 'yes'); document.body.append(localStorage.getItem('kept'));</script>";

export async function withSite(use) {
  const site = createServer((_, answer) => answer.setHeader("content-type", "text/html").end(PAGE));
  await new Promise((resolve) => { site.listen(0, "127.0.0.1", resolve); });
  try {
    await use(`http://127.0.0.1:${site.address().port}`);
  } finally {
    await new Promise((resolve) => { site.closeAllConnections(); site.close(resolve); });
  }
}
