// How pages look: like the console. Put in as a sheet of the document's own, so that no policy has to allow markup with styles.

const TEXT = `
:root {
  --ground: light-dark(#f6f7f9, #101216); --surface: light-dark(#ffffff, #171a20); --raised: light-dark(#f0f2f5, #1f232b);
  --line: light-dark(#e1e5eb, #2a2f39); --text: light-dark(#1b2029, #e6e9ef); --dim: light-dark(#5a6473, #9aa4b2);
  --accent: light-dark(#3552d8, #8fa5ff); --on-accent: light-dark(#ffffff, #10131c); --good: light-dark(#0f7a43, #5fd39a);
  --busy: light-dark(#8a5a00, #f0bd5b); --bad: light-dark(#b3261e, #ff8f86);
  --mono: ui-monospace, "SF Mono", "Cascadia Code", "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
  background: var(--ground); color: var(--text);
}
*, ::before, ::after { box-sizing: border-box; }
body { margin: 0; }
h2, p, dl, dd, ul { margin: 0; }
h2 { font-size: 14px; font-weight: 600; overflow-wrap: anywhere; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 4px; }
a, .link { color: var(--accent); text-decoration: none; }
a:hover, .link:hover { text-decoration: underline; }
.link { all: unset; cursor: pointer; color: var(--accent); }
.link:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.dim, small { color: var(--dim); }
.good { color: var(--good); } .busy { color: var(--busy); } .bad, .needed { color: var(--bad); }
.space { flex: 1; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.card { background: var(--surface); border: 1px solid var(--line); border-radius: 12px; margin-bottom: 16px; overflow: hidden; }
.bar { display: flex; align-items: center; gap: 10px; flex-wrap: wrap; padding: 12px 18px; border-bottom: 1px solid var(--line); }
.bar.end { justify-content: flex-end; padding: 0; border: 0; }
.empty { padding: 26px 18px; color: var(--dim); text-align: center; }
.message { padding: 12px 18px; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
input, select, textarea, .button { font: inherit; color: inherit; }
input, select, textarea { background: var(--surface); border: 1px solid light-dark(#8b95a4, #5a6473); border-radius: 7px; padding: 6px 10px; min-width: 0; }
input[type="search"] { width: min(300px, 100%); }
input:not([type]), input[type="text"], input[type="number"], .form select, textarea { width: 100%; }
[aria-invalid="true"] { border-color: var(--bad); }
textarea { resize: vertical; }
.code, pre { font: 12.5px/20px var(--mono); }
.code.whole { display: block; border: 0; border-radius: 0; padding: 14px 18px; background: light-dark(#fbfcfd, #12151a); outline-offset: -2px; }
pre { margin: 0; padding: 14px 18px; overflow: auto; max-height: 60vh; background: light-dark(#fbfcfd, #12151a); }
.button { font-weight: 550; padding: 5px 12px; border-radius: 7px; border: 1px solid var(--line); background: var(--surface); cursor: pointer; white-space: nowrap; }
.button:hover { background: var(--raised); }
.button.main { background: var(--accent); border-color: var(--accent); color: var(--on-accent); }
.button.danger { color: var(--bad); }
.button:disabled { opacity: .55; cursor: default; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 9px 18px; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
tbody tr:hover { background: light-dark(#fafbfc, #1a1e25); }
th { font-size: 12px; font-weight: 550; color: var(--dim); white-space: nowrap; background: light-dark(#fafbfc, #191c23); }
td { overflow-wrap: anywhere; }
.sort { all: unset; cursor: pointer; }
.sort:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
td.actions { text-align: right; white-space: nowrap; }
td .button { padding: 0 10px; font-size: 12.5px; margin-left: 6px; }
dl { padding: 14px 18px; display: grid; gap: 8px; }
dl > div { display: grid; grid-template-columns: minmax(120px, 220px) 1fr; gap: 18px; }
dt { color: var(--dim); }
dd { overflow-wrap: anywhere; }
.conditions { list-style: none; padding: 0; }
.conditions li { padding: 10px 18px; border-bottom: 1px solid var(--line); }
.conditions li:last-child { border-bottom: 0; }
.conditions p { overflow-wrap: anywhere; color: var(--dim); }
.form { display: grid; gap: 16px; padding: 18px; max-width: 760px; }
.field { display: grid; gap: 4px; align-content: start; }
.field > label { font-weight: 550; }
.field.check { grid-template-columns: auto 1fr; gap: 4px 10px; align-items: center; }
.field.check > div { grid-column: 2; }
small { display: block; font-size: 12.5px; }
small.bad { color: var(--bad); }
.group, .items { border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; margin: 0; min-width: 0; }
.group > summary { font-weight: 600; cursor: pointer; }
.group[open] > summary { margin-bottom: 10px; }
.group > .field, .group > .group, .group > .items, .item > .field, .item > .group, .item > .items { margin-top: 14px; }
.items > legend { font-weight: 600; padding: 0 6px; }
.item { border-left: 3px solid var(--line); padding: 0 0 6px 14px; margin: 10px 0 14px; }
.item > .button { margin-top: 12px; }
dialog { border: 1px solid var(--line); border-radius: 14px; background: var(--surface); color: var(--text); max-width: 440px; padding: 22px; box-shadow: 0 18px 60px rgb(0 0 0 / .25); }
dialog::backdrop { background: rgb(10 12 16 / .45); }
dialog p { margin: 10px 0 20px; }
.site { display: block; width: 100%; height: 100vh; border: 0; }
`;

/** Puts the styles in; the returned function takes them out. */
export function dress(page: Document): () => void {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(TEXT);
  page.adoptedStyleSheets = [...page.adoptedStyleSheets, sheet];
  return () => {
    page.adoptedStyleSheets = page.adoptedStyleSheets.filter((one) => one !== sheet);
  };
}
